"""Real compiled programs: figures that were counted independently, and what must hold on every file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from perfscope.analyzers.hlo.cost import ModuleCost, module_cost
from perfscope.analyzers.readers import hlo_proto, hlo_text
from perfscope.profiler.errors import DataError
from tests.conftest import corpus_files

pytestmark = pytest.mark.corpus

FILES = [
    *corpus_files("aot", "*.hlo.txt.gz"), *corpus_files("aot", "*.hlo.pb.gz"), *corpus_files("hlo_text"),
    *corpus_files("hlo_pb"),
]  # fmt: skip


def read(path: Path) -> ModuleCost:
    reader = hlo_proto if ".pb" in path.name else hlo_text
    return module_cost(reader.read(path).hlo[0])


def test_a_blocked_attention_runs_its_loops(corpus: Path):
    # four blocks of keys, forward and backward; counted without loops it is 1.2e8
    found = read(corpus / "aot" / "gpu_attn_blocked.hlo.txt.gz")
    assert found.total.flops == pytest.approx(4.9e8, rel=0.005)
    assert found.total.exact
    assert found.recompute_share() == pytest.approx(0.15, abs=0.002)


def test_a_scan_reads_its_slices_and_not_its_buffers(corpus: Path):
    # 256 turns forward and backward over 32 KiB to 512 KiB of state; whole buffers each turn would be 144 MB
    found = read(corpus / "aot" / "gpu_ssm_seq.hlo.txt.gz")
    assert found.total.bytes_read < 12e6
    rows = [row for row in found.launched if row.runs == 256 and "dynamic_update_slice" in row.instruction.name]
    assert rows
    for row in rows:
        assert row.instruction.shape.bytes >= 8 * (row.once.bytes_written), row.instruction.name


@pytest.mark.parametrize(
    ("policy", "share"), [("none", 0.0), ("full", 0.143), ("dots", 0.001), ("names", 0.143)]
)  # fmt: skip
def test_recompute_share_of_checkpoint_policies(corpus: Path, policy: str, share: float):
    found = read(corpus / "aot" / f"gpu_ckpt_{policy}_scan.hlo.txt.gz")
    assert found.recompute_share() == pytest.approx(share, abs=0.0005)
    phases = found.phases
    products = sum(phases["forward"].products.values()), sum(phases["backward"].products.values())
    assert products[1] / products[0] == pytest.approx(2, rel=0.01)  # gradients of weights and of inputs


def test_what_xla_rematerialized_is_the_difference_of_the_two_programs(corpus: Path):
    roomy = read(corpus / "aot" / "gpu_remat_h100.hlo.txt.gz")
    tight = read(corpus / "aot" / "gpu_remat_h100_small.hlo.txt.gz")

    def operations(cost: ModuleCost) -> int:
        return cost.total.flops + cost.total.transcendentals

    assert operations(roomy) == pytest.approx(3.060e11, rel=0.0005)
    assert operations(tight) == pytest.approx(3.577e11, rel=0.0005)
    seen: set[str] = set()
    again = 0
    for row in tight.launched:
        name = row.instruction.scheduling_name
        if name in seen:
            again += row.total.flops + row.total.transcendentals
        if name:
            seen.add(name)
    assert again == operations(tight) - operations(roomy) == pytest.approx(5.169e10, rel=0.0005)


@pytest.mark.parametrize("name", ["attn_blocked", "attn_naive", "moe_einsum", "moe_ragged", "ssm_seq", "ssm_assoc"])
def test_text_and_proto_of_a_program_cost_the_same(corpus: Path, name: str):
    text, proto = (read(corpus / "aot" / file) for file in (f"gpu_{name}.hlo.txt.gz", f"{name}.hlo.pb.gz"))
    assert text.total == proto.total


@pytest.mark.parametrize("step", ["md_tp", "md_fsdp", "md_fsdp_unrolled"])
def test_a_step_compiled_for_tpu_has_the_products_it_has_on_gpu(corpus: Path, step: str):
    # on TPU they are convolutions with windows, in loops whose trip counts nobody wrote down
    tpu, gpu = (read(corpus / "aot" / f"{device}_{step}.hlo.txt.gz") for device in ("tpu", "gpu"))
    assert not any(row.instruction.opcode == "dot" for row in tpu.rows)
    assert tpu.total.exact
    assert gpu.total.exact
    assert sum(tpu.total.products.values()) == sum(gpu.total.products.values())


def scalar_constants(path: Path) -> list[str]:
    """Scalar constants of a program."""
    return [row.instruction.name for row in read(path).rows if row.instruction.opcode == "constant"]


@pytest.mark.jax
@pytest.mark.parametrize(
    "name", ["attn_naive", "ckpt_dots_unroll", "ckpt_full_unroll", "ckpt_none_unroll", "remat_h100", "remat_h100_small"]
)
def test_a_program_without_loops_and_collectives_costs_what_xla_says(corpus: Path, name: str):
    jax = pytest.importorskip("jax")
    private, text = pytest.importorskip("jaxlib._jax"), pytest.importorskip("jaxlib._hlo")
    path = corpus / "aot" / f"gpu_{name}.hlo.txt.gz"
    module = text.hlo_module_from_text(gzip.decompress(path.read_bytes()).decode())
    stated = private.hlo_module_cost_analysis(jax.devices("cpu")[0].client, module)
    total = read(path).total
    # XLA adds up in float32
    assert total.flops == pytest.approx(stated["flops"], rel=1e-6)
    assert total.transcendentals == pytest.approx(stated["transcendentals"], rel=1e-6)
    # and it reads a scalar constant inside a fusion from memory, 4 B each
    slack = 4 * len(scalar_constants(path)) + 1e-6 * total.bytes
    assert total.bytes == pytest.approx(stated["bytes accessed"], abs=slack)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_program_adds_up(path: Path):
    try:
        found = read(path)
    except DataError as error:
        pytest.skip(str(error))
    total = found.total
    for part in ("flops", "transcendentals", "bytes_read", "bytes_written", "wire_bytes", "host_bytes", "unknown"):
        launched = sum(getattr(row.total, part) for row in found.launched)
        phases = sum(getattr(phase, part) for phase in found.phases.values())
        assert launched == phases == getattr(total, part), part
    for row in found.rows:
        assert row.once.flops >= sum(row.once.products.values())
        assert min(row.once.bytes_read, row.once.bytes_written, row.once.wire_bytes, row.runs) >= 0
        assert row.flops is None or row.flops == row.once.flops
    assert 0 <= found.unknown_bytes_share <= 1
    assert total.exact or total.unknown or any(not row.once.exact or not row.runs_exact for row in found.rows)
