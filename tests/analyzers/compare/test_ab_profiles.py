"""The cause from profiled pairs: which pair is shown, exact metrics over all of them, kernels, and what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perfscope.analyzers.compare.ab_profiles import Profiles, compare_profiles
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import DataError
from tests.analyzers.compare.two_runs import gpu_run


def compared(*pairs: tuple[Trace, Trace], lost: Sequence[str] = ()) -> Profiles:
    held = {Path(f"runs/{side}-{number}"): pair[at] for number, pair in enumerate(pairs)
            for at, side in enumerate(("base", "head"))}  # fmt: skip

    def read(path: Path) -> list[Trace]:
        return [held[path]]

    runs = [(Path(f"runs/base-{number}"), Path(f"runs/head-{number}")) for number in range(len(pairs))]
    return compare_profiles(runs, lost, read=read)


def test_one_pair_is_compared_as_two_runs_are() -> None:
    found = compared((gpu_run(), gpu_run(item=True)))
    assert found.comparison is not None
    assert found.comparison.headline == "regression"
    assert found.comparison.causes[0].place == "train.py:11"
    assert (found.used, found.kernels, found.lost) == (1, (), ())


def test_a_metric_that_launches_of_one_commit_do_not_agree_on_concludes_nothing() -> None:
    odd = (gpu_run(item=True), gpu_run(item=True))
    found = compared((gpu_run(), gpu_run(item=True)), odd, (gpu_run(), gpu_run(item=True)))
    assert found.comparison is not None
    (syncs,) = [one.result for one in found.comparison.exact if one.result.name == "host syncs a step"]
    assert syncs.verdict == "inconclusive"
    assert any("differs between launches of base: 0 to 1" in remark for remark in syncs.remarks)
    assert found.comparison.gates(["regression"]) == ()
    agreed = compared((gpu_run(), gpu_run(item=True)), (gpu_run(), gpu_run(item=True)))
    assert agreed.comparison is not None
    assert agreed.comparison.gates(["regression"]) == ("host syncs a step: regression",)


def test_the_pair_in_the_middle_is_shown() -> None:
    base = gpu_run(steps=1, slow_us=1000)  # its work ends behind its step
    found = compared(*((base, gpu_run(steps=1, slow_us=1000 + slow)) for slow in (0, 300, 60)))
    assert found.comparison is not None
    assert found.comparison.time is not None
    moved = [part.delta_ns for part in found.comparison.time.median.parts if part.kind == "compute" and part.delta_ns]
    assert moved == [60_000]


def test_kernels_are_judged_from_four_pairs_on() -> None:
    pairs = [(gpu_run(slow_us=0.1 * number), gpu_run(slow_us=40 + 0.2 * number)) for number in range(4)]
    assert compared(*pairs[:3]).kernels == ()
    found = compared(*pairs)
    assert (found.kernels[0].name, found.kernels[0].verdict) == ("aten::mm", "regression")
    assert found.kernels[0].q is not None
    assert found.kernels[0].change == pytest.approx(40_150, abs=100)
    assert {one.verdict for one in found.kernels[1:]} <= {"inconclusive"}


def test_a_pair_that_cannot_be_read_is_told_without_our_folder() -> None:
    def read(path: Path) -> list[Trace]:
        if path.name == "head-0":
            raise DataError(f"{path}: damaged")
        return [gpu_run()]

    runs = [(Path("runs/base-0"), Path("runs/head-0")), (Path("runs/base-1"), Path("runs/head-1"))]
    found = compare_profiles(runs, ["profiled launch of base: exit code 1"], read=read)
    assert (found.used, found.lost) == (1, ("profiled launch of base: exit code 1", "head-0: damaged"))
    nothing = compare_profiles(runs[:1], read=read)
    assert (nothing.comparison, nothing.lost) == (None, ("head-0: damaged",))
