"""Metrics without chance."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.compare.programs.pairs import fingerprint
from perfscope.analyzers.compare.runs.measures import Measure, measures
from perfscope.analyzers.compare.runs.structure import ExactMetric, Structure, exact_metric, structure
from perfscope.analyzers.compare.statistics.verdict import compare_exact, compare_text
from perfscope.analyzers.readers.load import load_one
from perfscope.model.op_graph import GraphOp, OpGraph
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.compare.runs import gpu_run, host_run

GIB = 1 << 30


@pytest.mark.parametrize(
    ("base", "head", "unit", "verdict"),
    [
        (3, 3, "count", "no change"),
        (3, 4, "count", "regression"),
        (4, 3, "count", "improvement"),
        (0, 2, "count", "regression"),
        (1 / 60, 59 / 60, "count", "regression"),  # in every step but one that the recording cut
        (0, 2 / 3, "count", "no change"),  # in two of the three steps that were recorded
        (10 * GIB, 10 * GIB + (1 << 20), "bytes", "no change"),
        (10 * GIB, 10 * GIB + (11 << 20), "bytes", "regression"),
        (1 << 20, 3 << 20, "bytes", "regression"),
        (1 << 20, (1 << 20) + 4096, "bytes", "no change"),
        (10**12, 10**12 + 10**8, "FLOP", "no change"),
        (10**12, 10**12 - 10**10, "FLOP", "improvement"),
    ],
)
def test_one_value_on_each_side_is_enough(base: int, head: int, unit: str, verdict: str) -> None:
    found = compare_exact("metric", [base], [head], unit=unit)
    assert (found.verdict, found.known, found.p, found.gates) == (verdict, "exact", None, True)


def test_more_may_be_better() -> None:
    assert compare_exact("fusions", [5], [4], unit="count", better="higher").verdict == "regression"


def test_launches_that_disagree_among_themselves_must_lie_apart() -> None:
    overlapping = compare_exact("syncs", [3, 5], [4, 6], unit="count")
    assert overlapping.verdict == "inconclusive"
    assert "differs between launches of base: 3 to 5" in overlapping.remarks
    assert compare_exact("syncs", [3, 5], [6, 9], unit="count").verdict == "regression"
    assert compare_exact("syncs", [6, 9], [3, 5], unit="count").verdict == "improvement"


def test_from_none_there_is_no_share() -> None:
    found = compare_exact("graph breaks", [0], [3], unit="count")
    assert found.effect is None
    assert "from none to 3" in found.remarks
    assert compare_exact("graph breaks", [0], [0], unit="count").effect == 0


def test_what_was_not_recorded_is_inconclusive() -> None:
    found = compare_exact("peak", [], [float("nan")], unit="bytes")
    assert (found.verdict, found.remarks) == ("inconclusive", ("not recorded in base and head",))
    with pytest.raises(ValueError):
        compare_exact("peak", [1], [1], unit="parsec")


def test_fingerprints() -> None:
    assert compare_text("HLO", "a1", "a1").verdict == "no change"
    assert compare_text("HLO", "a1", "b2").verdict == "inconclusive"
    assert compare_text("HLO", None, "b2").remarks == ("not recorded in both",)


def metric(found: Structure, name: str) -> ExactMetric:
    (one,) = [one for one in found.metrics if one.result.name == name]
    return one


def with_graph(*ops: GraphOp) -> Trace:
    graph = OpGraph(
        step=0, device="cpu", ops=ops, tensors=(), live_out=frozenset(), parameters=frozenset(), storages=()
    )  # fmt: skip
    return TraceBuilder(recorded=frozenset({"host_ops", "steps"}), op_graph=graph).build()


def op(
    index: int, line: int, *, file: str = "train.py", host_read: str | None = None, recompute: bool = False,
    flops: int | None = 100,
) -> GraphOp:  # fmt: skip
    return GraphOp(
        index=index, name="aten.mm.default", phase="forward", inputs=(), outputs=(), mutated=(), pointwise=False,
        reduction=False, view=False, module="", file=file, line=line, function="f", sequence=None,
        host_read=host_read, recompute=recompute, flops=flops,
    )  # fmt: skip


class TestDeviceWork:
    def test_counts_are_per_step(self) -> None:
        held = measures(gpu_run(steps=3)).found
        assert held["kernels per step"].value == 4
        assert held["launches per step"].value == 4
        assert held["host syncs per step"].value == 0

    def test_an_added_item_is_one_sync_at_its_line(self) -> None:
        found = metric(structure([gpu_run()], [gpu_run(item=True)]), "host syncs per step")
        assert (found.result.verdict, found.result.base, found.result.head) == ("regression", 0, 1)
        assert [(one.place, one.base, one.head) for one in found.places] == [("train.py:11", 0, 1)]

    def test_a_lost_fusion_is_more_kernels(self) -> None:
        found = metric(structure([gpu_run(fused=True)], [gpu_run()]), "kernels per step")
        assert (found.result.verdict, found.result.base, found.result.head) == ("regression", 2, 4)

    def test_a_profiler_that_records_no_waits_saw_no_sync(self) -> None:
        trace = gpu_run()
        trace = replace(trace, recorded=trace.recorded - {"waiting_calls"})
        found = structure([trace], [gpu_run()])
        (lost,) = [one for one in found.not_looked if one.name == "host syncs per step"]
        assert lost.sides == ("base",)
        assert "no waits" in lost.reason

    def test_without_steps_a_longer_recording_is_no_regression(self) -> None:
        def recording(kernels: int) -> Trace:
            made = TraceBuilder()
            for number in range(kernels):
                made.launched("k", 10 * number, 10 * number + 5, 10 * number + 9, correlation=number)
            return made.build()

        found = metric(structure([recording(3)], [recording(9)]), "kernels per trace")
        assert found.result.verdict == "inconclusive"
        assert any("no steps" in remark for remark in found.result.remarks)
        assert metric(structure([recording(3)], [recording(3)]), "kernels per trace").result.verdict == "no change"


class TestGraph:
    def test_reads_recompute_and_flops_with_their_lines(self) -> None:
        head = with_graph(op(0, 5), op(1, 6, host_read="item", flops=None), op(2, 7, recompute=True))
        found = structure([with_graph(op(0, 5))], [head])
        read = metric(found, "reads by the host per step (structure)")
        assert [(one.place, one.head) for one in read.places] == [("train.py:6", 1)]
        assert metric(found, "recomputed ops per step").places[0].place == "train.py:7"
        assert metric(found, "FLOPs per step").result.head == 200

    def test_lines_that_only_moved_are_no_change_of_places(self) -> None:
        found = structure([with_graph(op(0, 5), op(1, 9))], [with_graph(op(0, 8), op(1, 12))])
        assert metric(found, "ops per step").places == ()

    def test_another_checkout_is_the_same_file(self) -> None:
        base = with_graph(op(0, 5, file="/a/train.py"))
        head = with_graph(op(0, 5, file="/b/train.py"), op(1, 6, file="/b/train.py"))
        assert [one.place for one in metric(structure([base], [head]), "ops per step").places] == ["/b/train.py:6"]

    def test_without_a_graph_it_says_so(self) -> None:
        found = structure([host_run()], [host_run()])
        assert {one.sides for one in found.not_looked} == {("base", "head")}
        assert not found.metrics


def test_of_ranks_the_one_with_most_counts_and_one_that_did_not_look_hides_it() -> None:
    found = structure([gpu_run(), gpu_run()], [gpu_run(), gpu_run(item=True)])
    assert metric(found, "host syncs per step").result.head == 1
    blind = gpu_run()
    blind = replace(blind, recorded=blind.recorded - {"device_work"})
    found = structure([gpu_run(), gpu_run()], [gpu_run(), blind])
    assert all(one.result.name != "kernels per step" for one in found.metrics)


def test_more_of_what_is_neither_better_nor_worse_is_not_judged() -> None:
    none, two = (Measure(name="compiled graphs", unit="count", value=value, neutral=True) for value in (0, 2))
    found = exact_metric("compiled graphs", none, two)
    assert (found.neutral, found.result.verdict) == (True, "inconclusive")
    assert exact_metric("compiled graphs", two, two).result.verdict == "no change"


@pytest.mark.corpus
class TestPrograms:
    def test_a_program_has_the_same_fingerprint_when_read_again(self, corpus: Path) -> None:
        first, second = (load_one(corpus / "aot" / "gpu_attn_naive.hlo.txt.gz").hlo[0] for _ in range(2))
        assert fingerprint(first) == fingerprint(second)

    def test_names_do_not_matter_and_shapes_do(self, corpus: Path) -> None:
        module = load_one(corpus / "aot" / "gpu_attn_naive.hlo.txt.gz").hlo[0]
        entry = module.computations[module.entry]
        one = entry.instructions[0]
        wider = replace(one, shape=replace(one.shape, dims=(*one.shape.dims, 2)))
        changed = replace(entry, instructions=(wider, *entry.instructions[1:]))
        other = replace(module, computations={**module.computations, module.entry: changed})
        assert fingerprint(other) != fingerprint(module)
        renamed = tuple(replace(held, op_name=f"x/{held.op_name}", line=1) for held in entry.instructions)
        same = replace(entry, instructions=renamed)
        again = replace(module, computations={**module.computations, module.entry: same})
        assert fingerprint(again) == fingerprint(module)

    def test_a_checkpoint_policy_is_recomputed_flops(self, corpus: Path) -> None:
        none, full = (load_one(corpus / "aot" / f"gpu_ckpt_{kind}_scan.hlo.txt.gz") for kind in ("none", "full"))
        found = structure([none], [full])
        again = metric(found, "recomputed FLOPs per run").result
        assert (again.verdict, again.base) == ("regression", 0)
        assert metric(found, "program").result.base != metric(found, "program").result.head
        assert metric(structure([full], [none]), "recomputed FLOPs per run").result.verdict == "improvement"
        same = structure([full], [full])
        assert {one.result.verdict for one in same.metrics} == {"no change"}
