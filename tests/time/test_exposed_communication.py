from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.ranks.rules.exposed_communication import operation_of_kernel
from perfscope.analyzers.readers.load import load_one
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.analyzers.registry import load_rule
from perfscope.dashboards.report.blocks import Table
from perfscope.dashboards.report.json_report import render as as_json
from perfscope.dashboards.report.sections.plan import plan_sections, steps_table
from perfscope.model.documents.torch_plan import Bucket, PlannedCollective, PlannedProcesses, StepPosition
from perfscope.model.finding import Finding
from perfscope.model.op_graph import GraphOp, GraphTensor, OpGraph
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace
from tests.plans.build import plan, trace_of
from tests.ranks.build import named, rank_set
from tests.ranks.test_devices import recording as devices_of
from tests.report.cells import rows
from tests.rules import judged_by

SCHEMA = Path(__file__).parents[2] / "docs" / "report-schema.json"


def op(index: int, flops: int, name: str = "aten.mm.default") -> GraphOp:
    return GraphOp(
        index=index, name=name, phase="backward", inputs=(0, 1), outputs=(2 + index,), mutated=(), pointwise=False,
        reduction=False, view=False, flops=flops, module="", file="train.py", line=9, function="main", sequence=None,
    )  # fmt: skip


def job(folder: Path, *, until: int, size: int = 64 << 20, **changes: Any) -> Trace:
    """Two products of at least a tenth of a millisecond, and an all-reduce requested after the first."""
    side = 8192
    products = (op(0, 2 * side**3), op(1, 2 * side**3))
    tensors = tuple(
        GraphTensor(storage=number, shape=(side, side), dtype="bfloat16", device="cpu", bytes=2 * side**2)
        for number in range(4)
    )
    eager = OpGraph(
        step=1, device="cpu", ops=products, tensors=tensors, live_out=frozenset(), parameters=frozenset()
    )  # fmt: skip
    asked = PlannedCollective(
        kind="all-reduce", op="c10d.allreduce_", bytes=size, dtype="bfloat16", group=0, by="DistributedDataParallel",
        phase="backward", file="train.py", line=7, function="main", at=StepPosition(ops=1), after=StepPosition(ops=1),
        until=StepPosition(ops=until),
    )  # fmt: skip
    processes = PlannedProcesses(
        world_size=8, backend="nccl", groups=(tuple(range(8)),), eager=(asked,),
        buckets=(Bucket(bytes=size, parameters=3),), notes=("rank 0 is planned",),
    )  # fmt: skip
    made = plan(**{"processes": processes, "compiled_by": "perfscope", "target": "h100x8", **changes})
    trace = trace_of(folder, made, "h100x8")
    return replace(trace, torch_plans=tuple(replace(held, eager=eager) for held in trace.torch_plans))


def plan_findings(trace: Trace) -> list[Finding]:
    check = load_rule("exposed_communication").plan
    assert check is not None
    return list(check(trace))


def test_what_the_step_waits_for_is_found_with_its_line_and_modelled_time(tmp_path: Path) -> None:
    (one,) = plan_findings(job(tmp_path, until=1))
    assert one.basis == "modelled"
    assert (one.where.file, one.where.line) == ("train.py", 7)
    assert one.cost_ns is not None
    assert one.cost_ns > 100_000  # 64 MiB over NVLink
    assert "o kernel can overlap with" in one.detail


def test_what_hides_behind_a_product_is_not(tmp_path: Path) -> None:
    assert plan_findings(job(tmp_path, until=2)) == []


def test_a_plan_of_one_process_waits_for_nobody(tmp_path: Path) -> None:
    assert plan_findings(job(tmp_path, until=1, processes=None)) == []


def test_reports_tell_of_it_and_the_json_report_keeps_to_its_schema(tmp_path: Path) -> None:
    analysis = analyze([job(tmp_path, until=1)])
    (view,) = plan_sections(analysis.plans)
    (exchanges,) = (block for block in view.blocks if isinstance(block, Table) and block.heads[0].title == "collective")
    (row,) = rows(exchanges)
    assert row["collective"] == "all-reduce"
    assert row["at"] == "train.py:7"
    assert row["bytes"] == "64.0 MiB"
    assert row["overlapped by"] == "nothing"
    said = " ".join(view.texts())
    assert "rank 0 of 8 processes (nccl)" in said
    assert "1 of 1 collectives of the eager step overlap with nothing" in said
    assert "64.0 MiB of gradients in 1 bucket" in said
    assert any(head.title == "with launches and waits" for head in steps_table(analysis.plans.plans[0]).heads)
    document = json.loads(as_json(analysis))
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    (told,) = document["plans"]["plans"]
    assert told["exchanges"]["eager"]["bytes"] == 64 << 20


NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


_judge_builder = judged_by("exposed_communication")


_judge_trace = judged_by("exposed_communication")


def _step(exposed: float) -> TraceBuilder:
    """Computation 0 to 1000 us with an all-reduce from 500 us that runs ``exposed`` us longer."""
    b = TraceBuilder()
    b.kernel("gemm", 0, 1000)
    b.kernel(NAME, 500, 1000 + exposed, stream=20, communication=True)
    return b


def test_flagged_with_what_no_kernel_covers():
    outcome = _judge_builder(_step(200))
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis, finding.cost_ns) == (
        "flagged", "all_reduce", "measured", 200_000,
    )  # fmt: skip
    assert finding.where.kernel == "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert finding.evidence[0]["exposed_ns"] == 200_000
    assert finding.evidence[0]["duration_ns"] == 700_000
    assert "A single rank cannot separate transfer from waiting" in finding.detail


def test_the_threshold_is_a_twentieth_of_the_devices_span():
    assert _judge_builder(_step(1000 / 19)).status == "flagged"
    assert _judge_builder(_step(1000 / 19 - 0.1)).status == "clean"


def test_a_hidden_collective_is_clean():
    b = TraceBuilder()
    b.kernel("gemm", 0, 1000)
    b.kernel(NAME, 100, 1000, stream=20, communication=True)
    assert _judge_builder(b).status == "clean"


def test_without_a_collective_nothing_was_looked_at():
    b = TraceBuilder()
    b.kernel("gemm", 0, 1000)
    assert (_judge_builder(b).status, _judge_builder(b).examined) == ("abstained", 0)


def test_group_and_size_come_from_the_collectives_table():
    b = _step(200)
    b.row("collectives", start_ns=500_000, end_ns=1_200_000, name=b.code("reduce_scatter"), kernel=1,
          group=b.code("dp"), group_size=8, elements_in=1024)  # fmt: skip
    (finding,) = _judge_builder(b).findings
    assert finding.subject == "reduce_scatter"
    assert (finding.evidence[0]["group"], finding.evidence[0]["ranks"], finding.evidence[0]["elements_in"]) == (
        "dp", 8, 1024,
    )  # fmt: skip


def test_two_operations_are_two_findings_that_share_no_time():
    b = _step(200)
    b.kernel("ncclDevKernel_SendRecv(x)", 1100, 1300, stream=21, communication=True)
    assert {f.subject: f.cost_ns for f in _judge_builder(b).findings} == {"all_reduce": 200_000, "send_recv": 100_000}


def test_an_operation_with_less_than_one_percent_gets_no_finding():
    for exposed, subjects in ((12.2, {"all_reduce", "send_recv"}), (12.0, {"all_reduce"})):
        b = _step(200)
        b.kernel("ncclDevKernel_SendRecv(x)", 1200, 1200 + exposed, stream=21, communication=True)
        assert {finding.subject for finding in _judge_builder(b).findings} == subjects


def test_collectives_of_the_host_are_not_judged():
    b = TraceBuilder(recorded=frozenset({"host_ops", "collectives"}))
    b.annotation("gloo:all_reduce", 0, 100)
    b.row("collectives", start_ns=0, end_ns=100_000, name=b.code("all_reduce"), slice=0)
    assert _judge_builder(b).status == "abstained"


def test_a_single_cpu_process_has_no_collective():
    b = TraceBuilder(recorded=frozenset({"host_ops"}))
    b.op("aten::add", 0, 10)
    assert _judge_builder(b).status == "abstained"


def test_abstains_where_nothing_was_recorded():
    assert _judge_builder(TraceBuilder(recorded=frozenset())).status == "abstained"


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [
        (NAME, "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", "send_recv"),
        ("ncclDevKernel_Generic(x)", "communication"),
        ("my_all_to_all_kernel", "communication"),
    ],
)
def test_the_operation_in_a_kernels_name(kernel, operation):
    assert operation_of_kernel(kernel) == operation


def _ranks(late: float = 2_000.0, *, world: int | None = None, exposed: float = 0.0) -> list[Trace]:
    """Three ranks, the second of which comes ``late`` us late to both all-reduces of 1500 us."""

    def beside(b: TraceBuilder, rank: int) -> None:
        b.kernel("gemm", 0, 900)
        if exposed:  # a kernel that only rank 0 shows, of another kind
            b.kernel("ncclDevKernel_SendRecv(x)", 1000, 1000 + (exposed if rank == 0 else 0.0), stream=21,
                     communication=True)  # fmt: skip

    return rank_set([[0.0, late, 0.0]] * 2, core=1500.0, jitter_us=0, extra=beside, world=world, waits=True)


def test_ranks_are_one_finding_whose_parts_sum_to_what_one_rank_measured():
    traces = _ranks()
    alone = max(sum(found.covers_ns.values()) for trace in traces for found in _judge_trace(trace).findings)
    outcome = analyze(traces, ["exposed_communication"])["exposed_communication"]
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.ranks) == ("flagged", "all_reduce", (0, 1, 2))
    for row in finding.evidence:
        assert row["exposed_ns"] == sum(
            row[part] for part in ("waiting_ns", "together_ns", "transfer_ns", "unclear_ns", "unmatched_ns")
        )
    worst = finding.evidence[0]
    assert (worst["exposed_ns"], worst["waiting_ns"], worst["mostly_for"], worst["transfer_ns"]) == (
        alone, 4_000_000, 1, 3_000_000,
    )  # fmt: skip
    # what is straggler's is not counted again
    assert finding.cost_ns == 3_000_000
    assert "4.00 ms waiting for rank 1, which came late, 3.00 ms the transfer itself" in finding.detail
    assert finding.advice.startswith("Make the late rank come in time: `straggler` names it")
    assert "A single rank cannot separate" not in finding.detail


def test_ranks_in_time_are_told_to_overlap():
    (finding,) = analyze(_ranks(0.0), ["exposed_communication"])["exposed_communication"].findings
    assert (finding.cost_ns, finding.evidence[0]["waiting_ns"]) == (3_000_000, 0)
    assert finding.advice.startswith("Let DDP overlap it")
    assert "straggler" not in finding.advice


def test_the_cost_beside_the_stragglers_does_not_count_a_moment_twice():
    found = analyze(_ranks(), ["exposed_communication", "straggler"])
    (exposed,), (late,) = found["exposed_communication"].findings, found["straggler"].findings
    assert late.ranks == (1,)
    assert exposed.cost_ns + late.cost_ns == exposed.evidence[0]["exposed_ns"] == 7_000_000


def test_missing_ranks_leave_the_transfer_unclear():
    (finding,) = analyze(_ranks()[:2], ["exposed_communication"])["exposed_communication"].findings
    assert (finding.evidence[0]["transfer_ns"], finding.evidence[0]["unclear_ns"]) == (0, 3_000_000)
    assert "waiting or transfer (clocks agree to 0 ns, and ranks are missing)" in finding.detail


def test_a_kind_that_no_other_rank_shows_is_said_to_be_unmatched():
    found = analyze(_ranks(exposed=2_000.0), ["exposed_communication"])["exposed_communication"]
    by_kind = {finding.subject: finding for finding in found.findings}
    assert sorted(by_kind) == ["all_reduce", "send_recv"]
    assert [(row["group"], row["unmatched_ns"]) for row in by_kind["send_recv"].evidence] == [
        ("not matched", 2_000_000)
    ]
    assert "2.00 ms of collectives that no other rank shows" in by_kind["send_recv"].detail


def test_one_rank_alone_keeps_its_own_finding_and_a_clean_one_stays_clean():
    (finding,) = analyze(_ranks()[:1], ["exposed_communication"])["exposed_communication"].findings
    assert "A single rank cannot separate" in finding.detail
    b = TraceBuilder()
    b.kernel("gemm", 0, 1000)
    b.kernel(NAME, 100, 1000, stream=20, communication=True)
    b.row("collectives", start_ns=100_000, end_ns=1_000_000, name=b.code("all_reduce"), kernel=1)
    assert analyze([b.build()], ["exposed_communication"])["exposed_communication"].status == "clean"


def test_a_trace_outside_of_the_job_still_has_its_say():
    other = named(_ranks()[0], world=2, path="other.json")
    found = analyze([*_ranks(), other], ["exposed_communication"])["exposed_communication"].findings
    assert [(finding.subject, "A single rank cannot separate" in finding.detail) for finding in found] == [
        ("all_reduce", True), ("all_reduce", False),
    ]  # fmt: skip


@pytest.mark.corpus
def test_megatron_ranks(corpus: Path):
    traces = [load_one(path) for path in sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_*"))]
    alone = [finding for trace in traces for finding in _judge_trace(trace).findings]
    found = analyze(traces, ["exposed_communication", "straggler"])
    (finding,) = found["exposed_communication"].findings
    assert finding.evidence[0]["exposed_ns"] == max(sum(one.covers_ns.values()) for one in alone) == 481_306_000
    assert (finding.path_ns, finding.evidence[0]["transfer_ns"]) == (44_465_000, 50_099_000)
    assert finding.cost_ns == finding.path_ns  # the rest of 50.9 ms is hidden, or the ranks wait for one another
    assert finding.own_ns is not None
    assert finding.own_ns > finding.cost_ns
    (late,) = found["straggler"].findings
    assert finding.cost_ns + late.cost_ns < 481_306_000


@pytest.mark.parametrize(
    ("around", "kind", "advice"),
    [
        ("nccl:all_to_all", "all_to_all", "Overlap it with other work"),
        ("c10d::alltoall_base_", "all_to_all", "Overlap it with other work"),
        ("_c10d_functional::all_to_all_single", "all_to_all", "Overlap it with other work"),
        ("nccl:send 0->1", "send_recv", "Use more microbatches"),
        ("aten::copy_", "send_recv", "Use more microbatches"),
    ],
)
def test_the_operation_is_what_the_host_asked_for(around: str, kind: str, advice: str):
    """NCCL makes an all-to-all of sends and receives."""
    b = TraceBuilder()
    b.step(1, 0, 1000)
    b.annotation(around, 0, 50)
    b.launched("ncclDevKernel_SendRecv(x)", 10, 100, 900, correlation=1, communication=True)
    (finding,) = _judge_trace(b.build()).findings
    assert finding.subject == kind
    assert advice in finding.advice


SEND_RECV = "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)"

META = 'metadata={op_name="jit(step)/mul" source_file="/home/me/train.py" source_line=24}'
MODULE = hlo_module(
    f"""
    ENTRY %main (a: f32[64]) -> f32[64] {{
      %a = f32[64]{{0}} parameter(0)
      %all-to-all-start.2 = (f32[64]{{0}}, f32[64]{{0}}) all-to-all-start(%a), channel_id=1, {META}, {GPU}
      %work = f32[64]{{0}} negate(%a)
      %all-to-all-done.2 = f32[64]{{0}} all-to-all-done(%all-to-all-start.2)
      ROOT %out = f32[64]{{0}} add(%all-to-all-done.2, %work)
    }}
    """
)


def recording(
    *kernels: tuple[str, str, float, float, int], module: HloModule | None = MODULE, name: str = "NVIDIA H100 80GB HBM3"
) -> Trace:
    """Kernels as (name, instruction, start, end, stream) in us; a stream above 7 communicates."""
    b = TraceBuilder(recorded=frozenset({"device_work", "hlo"}))
    b.device(0, name=name)
    for kernel, instruction, start, end, stream in kernels:
        b.kernel(kernel, start, end, stream=stream, communication=stream > 7)
        row = len(b.tables["kernels"]) - 1
        b.row("hlo_ops", start_ns=round(start * 1000), end_ns=round(end * 1000), name=b.code(instruction),
              module=b.code("jit_step"), encloses=False, kernel=row)  # fmt: skip
    built = b.build()
    held = () if module is None else (module,)
    return Trace(source=built.source, strings=built.strings, rows=built.rows, recorded=built.recorded, hlo=held)


_judge = judged_by("exposed_communication")


def test_a_kernel_on_a_stream_of_its_own_is_exposed_where_none_computes():
    outcome = _judge(recording(("work_kernel", "work", 0, 100, 7), (SEND_RECV, "all-to-all-start.2", 80, 140, 20)))
    (finding,) = outcome.findings
    # NCCL sends and receives for an all-to-all: the instruction has the operation, and the program the line
    assert (finding.subject, finding.cost_ns, finding.basis) == ("all_to_all", 40_000, "measured")
    assert finding.where.label() == "/home/me/train.py:24"
    assert finding.evidence[0]["instruction"] == "all-to-all-start.2"
    assert "latency_hiding" in finding.advice


def test_hidden_behind_a_kernel_it_is_clean():
    hidden = recording(("work_kernel", "work", 0, 100, 7), (SEND_RECV, "all-to-all-start.2", 20, 80, 20))
    assert _judge(hidden).status == "clean"


def test_without_the_program_the_instruction_still_names_the_operation():
    trace = recording(("work_kernel", "work", 0, 100, 7), (SEND_RECV, "collective-permute-start.1", 100, 140, 20),
                      module=None)  # fmt: skip
    (finding,) = _judge(trace).findings
    assert (finding.subject, finding.where.file) == ("collective_permute", None)
    assert finding.where.kernel == "ncclDevKernel_SendRecv"


def test_the_wait_on_a_tpus_core_and_the_transfer_beside_it_count_once():
    trace = recording(("work", "work", 0, 100, 1), ("all-to-all-start.2", "all-to-all-start.2", 60, 150, 20),
                      ("all-to-all-done.2", "all-to-all-done.2", 100, 150, 9), name="TPU v5p")  # fmt: skip
    (finding,) = _judge(trace).findings
    assert (finding.subject, finding.cost_ns) == ("all_to_all", 50_000)
    assert finding.where.label() == "/home/me/train.py:24"


def test_the_line_of_a_wait_is_that_of_its_start():
    trace = recording(("work", "work", 0, 100, 1), ("all-to-all-done.2", "all-to-all-done.2", 100, 150, 9))
    assert _judge(trace).findings[0].where.label() == "/home/me/train.py:24"


@pytest.mark.corpus
def test_virtual_devices_of_a_host_are_not_judged(corpus: Path):
    outcome = _judge(xspace_reader.read(corpus / "aot" / "md.xplane.pb.gz"))
    assert outcome.status == "abstained"
    assert "share the cores of one host" in (outcome.reason or "")


@pytest.mark.corpus
def test_a_program_alone_is_not_judged(corpus: Path):
    outcome = _judge(hlo_trace(corpus_module(corpus / "aot" / "gpu_md_fsdp.hlo.txt.gz")))
    assert (outcome.status, "no times" in (outcome.reason or "")) == ("abstained", True)


@pytest.mark.corpus
def test_a_real_tpu_with_little_communication_is_clean(corpus: Path):
    assert _judge(xspace_reader.read(corpus / "xplane" / "xprof__tpu_inference_2.xplane.pb.gz")).status == "clean"


def test_devices_of_one_recording_are_held_against_each_other():
    """Device 3 comes 30 us late to an all-reduce of 20 us; nothing else computes."""
    spans = [("all-reduce-start", device, 1, 30.0 if device == 3 else 0.0, 50.0) for device in range(4)]
    (finding,) = _judge(devices_of(spans)).findings
    (row,) = finding.evidence
    assert (finding.subject, row["group"], row["exposed_ns"], finding.cost_ns) == ("all_reduce", "0-3", 50_000, 50_000)
    assert (row["waiting_ns"], row["mostly_for"], row["transfer_ns"]) == (30_000, 3, 20_000)
    assert "30.0 us waiting for device 3, which came late, 20.0 us the transfer itself" in finding.detail
    # `straggler` does not look at devices of an accelerator, so the waiting is in this cost
    assert "compare what it does before with the other devices" in finding.advice
    assert "A single rank cannot separate" not in finding.detail


def test_devices_that_show_no_collective_of_another_keep_what_one_says():
    """Two devices that run different all-reduces: nothing is held against anything."""
    trace = devices_of([("all-reduce-start", 0, 1, 0.0, 50.0), ("gathered", 1, 1, 0.0, 50.0)])
    (finding,) = _judge(trace).findings
    assert finding.cost_ns == 50_000
    assert "A single rank cannot separate" in finding.detail


def test_devices_that_are_not_in_the_recording_may_have_come_later():
    """The program runs on four devices, two are here; a permute (named by its kernel) is never matched."""
    spans = [(name, device, 1, start, start + 50.0) for device in (0, 1)
             for name, start in (("all-reduce-start", 0.0), ("moved", 60.0))]  # fmt: skip
    (finding,) = _judge(devices_of(spans)).findings
    assert "50.0 us waiting or transfer (not all devices are here)" in finding.detail
    assert [(row["unclear_ns"], row["unmatched_ns"], row["transfer_ns"]) for row in finding.evidence] == [
        (50_000, 0, 0), (0, 50_000, 0),
    ]  # fmt: skip
