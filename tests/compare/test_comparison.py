"""Two sides as a whole: kinds, headline, gates, causes; on built traces and the corpus."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.compare.runs.causes import causes, corroborated, findings_change
from perfscope.analyzers.compare.runs.change import time_change
from perfscope.analyzers.compare.runs.comparison import compare, kind_of, severity_named
from perfscope.analyzers.compare.runs.structure import ExactMetric, Structure, structure
from perfscope.analyzers.compare.statistics.verdict import compare_exact
from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.readers.load import load_all
from perfscope.model.documents.compared_findings import FindingChange
from perfscope.model.documents.comparison import Place
from perfscope.model.errors import UsageError
from perfscope.model.finding import Basis, Finding, Outcome, Where
from tests.compare.runs import assert_quiet, assert_sums, gpu_run, host_run


class TestHeadline:
    def test_the_same_run_is_quiet(self) -> None:
        found = compare([gpu_run()], [gpu_run()])
        assert found.headline == "not judged"
        assert not any(cause.exact for cause in found.causes)
        assert {one.change for one in found.findings} <= {"unchanged"}
        assert found.gates(["regression", "finding:low"]) == ()

    def test_a_slower_kernel_alone_is_shown_and_never_judged(self) -> None:
        found = compare([gpu_run(steps=8)], [gpu_run(steps=8, slow_us=60)])
        assert found.headline == "not judged"
        assert found.step_time is not None
        assert not found.step_time.gates
        assert found.gates(["regression"]) == ()
        assert found.time is not None
        (one,) = [part for part in found.time.median.parts if part.delta_ns == 60_000]
        assert (one.status, one.key().place()) == ("slower", "train.py:10")

    def test_an_added_item_is_a_regression_with_its_line_first(self) -> None:
        found = compare([gpu_run()], [gpu_run(item=True)])
        assert found.headline == "regression"
        assert found.causes[0].place == "train.py:11"
        assert found.gates(["regression"]) == ("host syncs per step: regression",)
        assert "finding" not in "".join(found.gates(["regression"]))
        assert compare([gpu_run(item=True)], [gpu_run()]).headline == "improvement"

    def test_a_lost_fusion_is_a_regression_with_its_line_first(self) -> None:
        found = compare([gpu_run(fused=True)], [gpu_run()])
        assert (found.headline, found.causes[0].place) == ("regression", "train.py:12")

    def test_moved_lines_and_renamed_kernels_are_quiet(self) -> None:
        found = compare([gpu_run(line=10)], [gpu_run(line=30, kernel="gemm_64x64_nn")])
        assert found.headline == "not judged"
        assert not any(cause.exact for cause in found.causes)

    def test_other_iteration_counts_are_quiet(self) -> None:
        assert compare([gpu_run(steps=2)], [gpu_run(steps=5)]).headline == "not judged"


class TestGates:
    def test_a_new_finding_of_the_severity_fails(self) -> None:
        found = compare([gpu_run()], [gpu_run(item=True)])
        new = [one for one in found.findings if one.is_worse]
        assert new
        assert len(found.gates(["finding:low"])) == len(new)
        assert len(found.gates(["finding:high"])) == sum(one.shown.severity == "high" for one in new)

    def test_single_captures_leave_the_time_open(self) -> None:
        assert "step time (profiled)" in compare([gpu_run()], [gpu_run()]).inconclusive

    def test_a_gate_that_is_none(self) -> None:
        with pytest.raises(UsageError, match="finding:urgent"):
            severity_named("finding:urgent")


class TestByTimeAlone:
    """A finding whose threshold is a measured time comes and goes between two runs of one program."""

    @pytest.mark.parametrize(
        ("where", "basis", "by_time"),
        [
            (Where(file="model.py", line=10), "measured", True),
            (Where(file="model.py", line=11), "measured", False),
            (Where(op="aten::mm"), "measured", True),
            (Where(op="aten::item"), "measured", False),
            (Where(file="model.py", line=10), "structural", False),
        ],
    )
    def test_a_new_finding_is_believed_where_a_count_changed(self, where: Where, basis: Basis, by_time: bool) -> None:
        base, head = host_run(line=8), host_run(line=8, item=True)  # the read is on line 11
        change = time_change([base], [head])
        assert change is not None
        finding = Finding(subject="s", title="t", severity="high", basis=basis, advice="a", where=where)
        came = FindingChange(rule="r", change="new", base=None, head=finding)
        (one,) = corroborated([came], change.median, structure([base], [head]))
        assert (one.by_time, one.is_worse) == (by_time, not by_time)

    def test_programs_and_snapshots_have_no_time_to_doubt(self) -> None:
        finding = Finding(subject="s", title="t", severity="high", basis="modelled", advice="a")
        came = FindingChange(rule="r", change="new", base=None, head=finding)
        assert corroborated([came], None, Structure(metrics=(), not_looked=())) == (came,)

    def test_with_a_count_that_changed_beside_it_it_is_believed(self) -> None:
        found = compare([gpu_run()], [gpu_run(item=True)])
        assert any(one.is_worse and one.shown.where.line == 11 for one in found.findings)


class TestOrder:
    """Among places where a count changed, the place of the rule that names the count comes first."""

    def test_what_is_recomputed_stands_before_the_lines_that_it_makes_costlier(self) -> None:
        recomputed = ExactMetric(
            result=compare_exact("recomputed ops per step", [0.0], [20.0], unit="count"),
            places=(Place(place="model.py:91", base=0, head=20),),
        )
        came = [self.came("unfused_ops", 91), self.came("excess_remat", 88)]
        found = causes(None, Structure(metrics=(recomputed,), not_looked=()), came)
        assert [cause.place for cause in found] == ["model.py:88", "model.py:91"]
        found = causes(None, Structure(metrics=(recomputed,), not_looked=()), [came[0], self.came("peak_owner", 88)])
        assert [cause.place for cause in found] == ["model.py:91", "model.py:88"]

    @staticmethod
    def came(rule: str, line: int) -> FindingChange:
        where = Where(file="model.py", line=line)
        finding = Finding(subject=rule, title="t", severity="low", basis="measured", advice="a", where=where)
        return FindingChange(rule=rule, change="new", base=None, head=finding)


class TestKinds:
    def test_kinds_that_cannot_be_compared(self, corpus: Path) -> None:
        program = load_all(corpus / "aot" / "gpu_attn_naive.hlo.txt.gz")
        with pytest.raises(UsageError, match="of one kind"):
            compare([gpu_run()], program)

    def test_nothing(self) -> None:
        with pytest.raises(UsageError, match="nothing to compare"):
            compare([], [gpu_run()])

    def test_another_device_is_said(self) -> None:
        found = compare([gpu_run(device="Old")], [gpu_run(device="New")])
        assert any("Old against New" in line for line in found.cautions)

    def test_kinds(self) -> None:
        assert kind_of(gpu_run()) == "PyTorch recording"
        assert kind_of(host_run()) == "PyTorch recording"


HTA = "kineto/HolisticTraceAnalysis__trace_diff"

PAIRS = [
    pytest.param(f"{HTA}_control.json.gz", f"{HTA}_test.json.gz", marks=pytest.mark.slow),
    ("kineto/TraceLens__h100_qwen1.5-0.5b.json.gz", "kineto/TraceLens__mi300_qwen1.5-0.5b.json.gz"),
    pytest.param(
        "nsys_sqlite/nsys-ai__mfu_2gpu_before.sqlite.gz", "nsys_sqlite/nsys-ai__h100_2gpu_1s.sqlite.gz",
        marks=pytest.mark.slow,
    ),
    ("xplane/TraceLens__mi300_jax08_gemm.xplane.pb.gz", "xplane/TraceLens__mi300_jax_conv_08.xplane.pb.gz"),
]  # fmt: skip


@pytest.mark.corpus
class TestCorpus:
    @pytest.mark.parametrize(("base", "head"), PAIRS)
    def test_parts_sum_to_the_whole(self, corpus: Path, base: str, head: str) -> None:
        found = compare(load_all(corpus / base), load_all(corpus / head))
        assert_sums(found)

    @pytest.mark.parametrize(("path", "head"), PAIRS)
    def test_a_trace_against_itself_is_quiet(self, corpus: Path, path: str, head: str) -> None:
        assert_quiet(compare(load_all(corpus / path), load_all(corpus / path)))

    def test_memory_snapshots_have_bytes_and_no_time(self, corpus: Path) -> None:
        one, other = (
            load_all(corpus / "torch_mem" / f"assignment2-systems__fwd_{kind}_128.pickle.gz")
            for kind in ("bf16", "fp32")
        )
        found = compare(one, other)
        assert (found.base.kind, found.time, found.step_time) == ("memory snapshot", None, None)
        peak = {one.result.name: one.result for one in found.exact}["peak memory (cuda:0)"]
        assert (peak.verdict, peak.gates) == ("improvement", True)
        assert compare(other, one).gates(["regression"]) != ()
        assert_quiet(compare(one, one))

    def test_compiled_programs_are_compared_without_a_clock(self, corpus: Path) -> None:
        none, full = (load_all(corpus / "aot" / f"gpu_ckpt_{kind}_unroll.hlo.txt.gz") for kind in ("none", "full"))
        found = compare(none, full)
        assert (found.base.kind, found.time) == ("compiled programs", None)
        assert "excess_remat" in {one.rule for one in found.findings if one.is_worse}
        assert found.gates(["finding:medium"]) != ()
        assert_quiet(compare(full, full))

    def test_sets_of_ranks(self, corpus: Path) -> None:
        one, other = (
            [load_all(path)[0] for path in sorted((corpus / "kineto").glob(f"torchrec__{name}*"))]
            for name in ("sst_long_a2a", "sst_sleep")
        )
        found = compare(one, other)
        assert_sums(found)
        assert found.time is not None
        assert found.time.worst is not None
        assert found.time.worst.rank == 2  # it sleeps for a second before a collective; all the others wait for it
        assert len(found.time.ranks) == 4
        assert "straggler" in {one.rule for one in found.findings if one.change == "new"}
        assert_quiet(compare(one, one))


SYNC = Finding(
    subject="item read",
    title="`.item()` waits 1 ms",
    severity="medium",
    basis="measured",
    advice="do not",
    cost_ns=3_000_000,
    cost_ns_per_step=1_000_000,
    where=Where(file="train.py", line=88),
)


def analysis(*findings: Finding, status: str = "", reason: str | None = None) -> Analysis:
    held = status or ("flagged" if findings else "clean")
    outcome = Outcome(rule="host_sync", status=held, reason=reason, findings=findings)  # type: ignore[arg-type]
    return Analysis(sources=(), devices=(), steps=(), outcomes=(outcome,))


def changes(base: Analysis, head: Analysis, **more: float) -> list[str]:
    return [one.change for one in findings_change(base, head, **more)]


def sync_at_line(line: int, cost: int = 1_000_000) -> Finding:
    return replace(SYNC, where=Where(file="train.py", line=line), cost_ns_per_step=cost)


def test_new_fixed_and_unchanged() -> None:
    assert changes(analysis(), analysis(SYNC)) == ["new"]
    assert changes(analysis(SYNC), analysis()) == ["fixed"]
    assert changes(analysis(SYNC), analysis(SYNC)) == ["unchanged"]


@pytest.mark.parametrize(("cost", "change"), [(1_400_000, "unchanged"), (1_600_000, "worse"), (600_000, "better")])
def test_cost_must_move_by_half(cost: int, change: str) -> None:
    assert changes(analysis(SYNC), analysis(sync_at_line(88, cost))) == [change]


def test_a_cost_that_moved_by_less_than_a_percent_of_the_step_is_the_same() -> None:
    assert changes(analysis(SYNC), analysis(sync_at_line(88, 2_000_000)), step_ns=200_000_000.0) == ["unchanged"]
    assert changes(analysis(SYNC), analysis(sync_at_line(88, 2_000_000)), step_ns=50_000_000.0) == ["worse"]


def test_a_moved_line_is_the_same_finding_and_a_second_one_is_new() -> None:
    assert changes(analysis(SYNC), analysis(sync_at_line(95))) == ["unchanged"]
    (first, second) = findings_change(analysis(SYNC), analysis(sync_at_line(90), sync_at_line(95)))
    assert (first.change, first.shown.where.line) == ("new", 95)
    assert second.change == "unchanged"


def test_what_is_gone_beside_a_finding_that_stays_is_fixed() -> None:
    other = replace(SYNC, subject="other")
    assert changes(analysis(SYNC, other), analysis(SYNC)) == ["fixed", "unchanged"]


def test_another_checkout_is_the_same_finding() -> None:
    elsewhere = replace(SYNC, where=Where(file="/other/train.py", line=88))
    here = replace(SYNC, where=Where(file="/one/train.py", line=88))
    assert changes(analysis(here), analysis(elsewhere)) == ["unchanged"]


def test_what_a_side_did_not_look_for_is_neither_new_nor_fixed() -> None:
    blind = analysis(status="abstained", reason="not recorded")
    assert changes(blind, analysis(SYNC)) == ["first looked at"]
    assert changes(analysis(SYNC), blind) == ["no longer looked at"]
    partly = analysis(status="clean", reason="rank 3: not recorded")
    assert changes(partly, analysis(SYNC)) == ["first looked at"]
    assert changes(Analysis(sources=(), devices=(), steps=(), outcomes=()), analysis(SYNC)) == ["first looked at"]


def test_without_times_the_severity_decides() -> None:
    plain = replace(SYNC, cost_ns=None, cost_ns_per_step=None)
    assert changes(analysis(plain), analysis(replace(plain, severity="high"))) == ["worse"]
    assert changes(analysis(plain), analysis(replace(plain, severity="low"))) == ["better"]
    assert changes(analysis(plain), analysis(plain)) == ["unchanged"]


def test_new_ones_come_first_the_severest_before_the_others() -> None:
    other = replace(SYNC, subject="other", severity="high")
    found = findings_change(
        analysis(SYNC), analysis(sync_at_line(88), replace(other, subject="low", severity="low"), other)
    )
    assert [(one.change, one.shown.subject) for one in found] == [
        ("new", "other"), ("new", "low"), ("unchanged", "item read"),
    ]  # fmt: skip


def test_only_new_and_worse_are_for_a_gate() -> None:
    kinds = ("new", "worse", "fixed", "better", "unchanged", "first looked at", "no longer looked at")
    gated = [kind for kind in kinds if FindingChange(rule="r", change=kind, base=SYNC, head=SYNC).is_worse]  # type: ignore[arg-type]
    assert gated == ["new", "worse"]
