"""context_parallel_imbalance: contiguous pieces, an even division, another late rank, pairs, what is not recorded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.ranks.build import collective, named
from tests.rules import compared_by

FLASH = "void pytorch_flash::flash_fwd_kernel<Traits>"
LAYERS = 4


outcome_of = compared_by("context_parallel_imbalance")


def contiguous(size: int, slope: float = 1.0) -> list[float]:
    """Attention of one layer on each rank, 1 ms on average."""
    return [1_000 * (1 + slope * ((2 * rank + 1) / size - 1)) for rank in range(size)]


def job(
    layers_us: Sequence[float],
    *,
    kernel: str = FLASH,
    group: str = "",
    other: float = 4_000.0,
    world: int | None = None,
    host: bool = False,
) -> list[Trace]:
    """A step of four layers: attention of ``layers_us[rank]``, other work, and a reduction that waits for all."""
    size, turn = len(layers_us), max(layers_us) + other + 100
    traces = []
    for rank, attention in enumerate(layers_us):
        build = TraceBuilder(rank=rank, path=f"rank{rank}.json")
        build.step(0, 0, LAYERS * turn)
        for layer in range(LAYERS):
            start = layer * turn
            if host:
                build.op("aten::_scaled_dot_product_flash_attention_for_cpu", start, start + attention)
            else:
                build.kernel(kernel, start, start + attention)
            build.kernel("gemm", start + attention, start + attention + other)
            collective(build, start + attention + other, start + turn, ranks=range(size), sequence=layer,
                       description=group)  # fmt: skip
        traces.append(named(build.build(), world=size if world is None else world))
    return traces


def test_contiguous_pieces_are_flagged() -> None:
    (finding,) = outcome_of(job(contiguous(4))).findings
    assert (finding.subject, finding.ranks, finding.basis) == (
        "causal attention in contiguous pieces",
        (3,),
        "modelled",
    )
    assert finding.cost_ns == 4 * 750_000  # the last rank has 1.75 ms in each layer, the mean is 1 ms
    assert [row["rank"] for row in finding.evidence] == [3, 2, 1, 0]
    assert [row["of_the_mean"] for row in finding.evidence] == [1.75, 1.25, 0.75, 0.25]
    assert [row["of_the_mean_if_contiguous"] for row in finding.evidence] == [1.75, 1.25, 0.75, 0.25]


def test_on_hosts_it_has_no_time() -> None:
    (finding,) = outcome_of(job(contiguous(4), host=True)).findings
    assert (finding.basis, finding.cost_ns, finding.ranks) == ("structural", None, (3,))


def test_half_of_the_slope_is_the_threshold() -> None:
    assert outcome_of(job(contiguous(4, slope=0.51))).status == "flagged"
    assert outcome_of(job(contiguous(4, slope=0.49))).status == "clean"


def test_zigzag_and_a_single_slow_rank_are_clean() -> None:
    assert outcome_of(job([1_000] * 4)).status == "clean"
    assert outcome_of(job([800, 800, 800, 3_000])).status == "clean"
    assert outcome_of(job(contiguous(4)[::-1])).status == "clean"


def test_little_of_the_step_is_clean() -> None:
    # 0.75 ms of a layer of 1.75 ms, other work and 0.1 ms
    assert outcome_of(job(contiguous(4), other=35_500)).status == "flagged"
    assert outcome_of(job(contiguous(4), other=35_800)).status == "clean"


def test_two_ranks_are_judged_if_the_program_says_what_they_divide() -> None:
    (finding,) = outcome_of(job(contiguous(2), group="mesh_cp")).findings
    assert finding.cost_ns == pytest.approx(4 * 500_000)
    assert "computes fused attention" in (outcome_of(job(contiguous(2))).reason or "")


def test_it_abstains_without_attention_or_ranks() -> None:
    assert "computes fused attention" in (outcome_of(job(contiguous(4), kernel="softmax_warp_forward")).reason or "")
    assert "computes fused attention" in (outcome_of(job(contiguous(4), world=8)[:3]).reason or "")
    assert "a single rank" in (outcome_of(job(contiguous(4))[:1]).reason or "")
