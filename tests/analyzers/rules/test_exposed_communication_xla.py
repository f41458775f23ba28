"""exposed_communication on recordings of XLA programs: GPU streams, a TPU's lines, and what has no device."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.readers import xplane
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import Trace
from tests.analyzers.ranks.test_devices import recording as devices_of
from tests.build import TraceBuilder
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace

RULE = load_rule("exposed_communication")
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


def _judge(trace: Trace) -> Outcome:
    return judge(RULE, trace)


def test_a_kernel_on_a_stream_of_its_own_is_exposed_where_none_computes():
    outcome = _judge(recording(("work_kernel", "work", 0, 100, 7), (SEND_RECV, "all-to-all-start.2", 80, 140, 20)))
    (finding,) = outcome.findings
    # NCCL sends and receives for an all-to-all: the instruction says what for, and the program which line
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
    outcome = _judge(xplane.read(corpus / "aot" / "md.xplane.pb.gz"))
    assert outcome.status == "abstained"
    assert "share the cores of one host" in (outcome.reason or "")


@pytest.mark.corpus
def test_a_program_alone_is_not_judged(corpus: Path):
    outcome = _judge(hlo_trace(corpus_module(corpus / "aot" / "gpu_md_fsdp.hlo.txt.gz")))
    assert (outcome.status, "no clock" in (outcome.reason or "")) == ("abstained", True)


@pytest.mark.corpus
def test_a_real_tpu_with_little_communication_is_clean(corpus: Path):
    assert _judge(xplane.read(corpus / "xplane" / "xprof__tpu_inference_2.xplane.pb.gz")).status == "clean"


def test_devices_of_one_recording_are_held_against_each_other():
    """Device 3 comes 30 us late to an all-reduce of 20 us; nothing else computes."""
    spans = [("all-reduce-start", device, 1, 30.0 if device == 3 else 0.0, 50.0) for device in range(4)]
    (finding,) = _judge(devices_of(spans)).findings
    (row,) = finding.evidence
    assert (finding.subject, row["group"], row["exposed_ns"], finding.cost_ns) == ("all_reduce", "0-3", 50_000, 50_000)
    assert (row["waiting_ns"], row["mostly_for"], row["transfer_ns"]) == (30_000, 3, 20_000)
    assert "30.0 us waiting for device 3, which came late, 20.0 us the transfer itself" in finding.title
    # `straggler` does not look at devices of an accelerator, so the waiting is in this cost
    assert "compare what it does before with the other devices" in finding.advice
    assert "One rank cannot tell" not in finding.advice


def test_devices_that_show_no_collective_of_another_keep_what_one_says():
    """Two devices that run different all-reduces: nothing is held against anything."""
    trace = devices_of([("all-reduce-start", 0, 1, 0.0, 50.0), ("gathered", 1, 1, 0.0, 50.0)])
    (finding,) = _judge(trace).findings
    assert finding.cost_ns == 50_000
    assert "One rank cannot tell" in finding.advice


def test_devices_that_are_not_in_the_recording_may_have_come_later():
    """The program runs on four devices, two are here; a permute (named by its kernel) is never matched."""
    spans = [(name, device, 1, start, start + 50.0) for device in (0, 1)
             for name, start in (("all-reduce-start", 0.0), ("moved", 60.0))]  # fmt: skip
    (finding,) = _judge(devices_of(spans)).findings
    assert finding.title.endswith(
        "50.0 us waiting or transfer (not all devices are here), 50.0 us of collectives that no other device shows"
    )
    assert [(row["unclear_ns"], row["unmatched_ns"], row["transfer_ns"]) for row in finding.evidence] == [
        (50_000, 0, 0), (0, 50_000, 0),
    ]  # fmt: skip
