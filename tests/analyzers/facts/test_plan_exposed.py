"""What the rules and the reports say of collectives in a plan, over plans by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.finding import Finding
from perfscope.analyzers.op_graph import GraphOp, GraphTensor, OpGraph
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import Trace
from perfscope.dashboards.reports.json_report import render as as_json
from perfscope.dashboards.reports.plan_rows import plan_views
from perfscope.profiler.aot.torch_processes_file import Bucket, Moment, PlannedCollective, PlannedProcesses
from tests.analyzers.plan_parts import plan, trace_of

SCHEMA = Path(__file__).parents[3] / "docs" / "report-schema.json"


def op(index: int, flops: int, name: str = "aten.mm.default") -> GraphOp:
    return GraphOp(
        index=index, name=name, phase="backward", inputs=(0, 1), outputs=(2 + index,), mutated=(), pointwise=False,
        reduction=False, view=False, flops=flops, module="", file="train.py", line=9, function="main", sequence=None,
    )  # fmt: skip


def job(folder: Path, *, until: int, size: int = 64 << 20, **changes: Any) -> Trace:
    """Two products of a tenth of a millisecond or more, and an all-reduce that is asked for behind the first."""
    products = (op(0, 10**12), op(1, 10**12))
    tensors = tuple(
        GraphTensor(storage=number, shape=(64, 64), dtype="bfloat16", device="cpu", bytes=8192) for number in range(4)
    )
    eager = OpGraph(
        step=1, device="cpu", ops=products, tensors=tensors, live_out=frozenset(), parameters=frozenset()
    )  # fmt: skip
    asked = PlannedCollective(
        kind="all-reduce", op="c10d.allreduce_", bytes=size, dtype="bfloat16", group=0, by="DistributedDataParallel",
        phase="backward", file="train.py", line=7, function="main", at=Moment(ops=1), after=Moment(ops=1),
        until=Moment(ops=until),
    )  # fmt: skip
    processes = PlannedProcesses(
        world_size=8, backend="nccl", groups=(tuple(range(8)),), eager=(asked,),
        buckets=(Bucket(bytes=size, parameters=3),), notes=("rank 0 is planned",),
    )  # fmt: skip
    made = plan(**{"processes": processes, "compiled_by": "perfscope", "target": "h100x8", **changes})
    trace = trace_of(folder, made, "h100x8")
    trace.torch_plans = tuple(replace(held, eager=eager) for held in trace.torch_plans)
    return trace


def found(trace: Trace) -> list[Finding]:
    check = load_rule("exposed_communication").plan
    assert check is not None
    return list(check(trace))


def test_what_the_step_waits_for_is_found_with_its_line_and_modelled_time(tmp_path: Path) -> None:
    (one,) = found(job(tmp_path, until=1))
    assert one.basis == "modelled"
    assert (one.where.file, one.where.line) == ("train.py", 7)
    assert one.cost_ns is not None
    assert one.cost_ns > 100_000  # 64 MiB over NVLink
    assert "no kernel can run beside" in one.title


def test_what_hides_behind_a_product_is_not(tmp_path: Path) -> None:
    assert found(job(tmp_path, until=2)) == []


def test_a_plan_of_one_process_waits_for_nobody(tmp_path: Path) -> None:
    assert found(job(tmp_path, until=1, processes=None)) == []


def test_reports_tell_of_it_and_the_json_report_keeps_to_its_schema(tmp_path: Path) -> None:
    analysis = analyze([job(tmp_path, until=1)])
    (view,) = plan_views(analysis.plans)
    (row,) = (dict(cells) for cells in view.exchanges)
    assert row["collective"] == "all-reduce"
    assert row["at"] == "train.py:7"
    assert row["bytes"] == "64.0 MiB"
    assert row["beside it"] == "nothing"
    said = " ".join(view.exchanged)
    assert "rank 0 of 8 processes (nccl)" in said
    assert "1 of 1 collectives of the eager step can hide behind nothing" in said
    assert "64.0 MiB of gradients in 1 bucket" in said
    assert any("with launches and waits" in dict(cells) for cells in view.steps)
    document = json.loads(as_json(analysis))
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    (told,) = document["plans"]["plans"]
    assert told["exchanges"]["eager"]["bytes"] == 64 << 20
