from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.collective import collectives_of
from perfscope.analyzers.hlo.execution import measured_ns
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from tests.build import EVERYTHING, TraceBuilder
from tests.hlo_build import corpus_module, hlo_module, hlo_trace, recorded_trace

RULE = load_rule("resharding_collective")


def _judge(collective: str, path: str, *, elements: int = 1024, op_name: bool = True) -> Outcome:
    name = f'op_name="{path}" ' if op_name else ""
    meta = f'metadata={{{name}source_file="/home/me/train.py" source_line=24}}'
    text = f"""
        ENTRY %main (a: f32[{elements}]) -> f32[{elements}] {{
          %a = f32[{elements}]{{0}} parameter(0)
          ROOT %r = f32[{elements}]{{0}} {collective}, channel_id=1, {meta}
        }}
    """
    return judge(RULE, hlo_trace(hlo_module(text)))


ALL_TO_ALL = "all-to-all(%a), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}"
PERMUTE = "collective-permute(%a), source_target_pairs={{0,1},{1,0}}"


def test_an_all_to_all_of_an_ordinary_op_is_flagged_with_its_line():
    outcome = _judge(ALL_TO_ALL, "jit(step)/transpose(jvp(mlp))/mul")
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis) == ("flagged", "unrequested all-to-all", "structural")
    assert (finding.cost_bytes, finding.where.label()) == (4096, "/home/me/train.py:24")
    row = finding.evidence[0]
    assert (row["backward"], row["group_size"], row["moved_bytes"]) == ("yes", 8, 4096)
    assert "with_sharding_constraint" in finding.advice


def exchange(*, platform: str = "gpu", size: int = 1 << 20, beside: bool = False) -> HloModule:
    """An all-to-all of float32 over 8 devices in a program for ``platform``; ``beside``: work runs meanwhile."""
    meta = 'metadata={op_name="jit(step)/mul" source_file="/home/me/train.py" source_line=24}'
    text = f"""
        %body (p: f32[N]) -> f32[N] {{
          %p = f32[N]{{0}} parameter(0)
          ROOT %e = f32[N]{{0}} negate(%p)
        }}
        ENTRY %main (a: f32[N], b: f32[N]) -> f32[N] {{
          %a = f32[N]{{0}} parameter(0)
          %b = f32[N]{{0}} parameter(1)
          %start = (f32[N]{{0}}, f32[N]{{0}}) all-to-all-start(%a), channel_id=1, replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}, {meta}
          {"%work = f32[N]{0} fusion(%b), kind=kLoop, calls=%body" if beside else ""}
          ROOT %done = f32[N]{{0}} all-to-all-done(%start)
        }}
    """  # noqa: E501
    return replace(hlo_module(text.replace("[N]", f"[{size}]")), platform=platform)


SENT_NS = 7 / 8 * 4 * (1 << 20) / 450e9 * 1e9
WORK_NS = 2 * 4 * (1 << 20) / 3.352e12 * 1e9


def test_of_a_program_alone_the_bytes_over_the_links_are_the_time():
    (finding,) = judge(RULE, hlo_trace(exchange())).findings
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.basis) == (round(SENT_NS), None, "modelled")
    assert (finding.severity, "on H100 SXM (assumed)" in finding.detail) == ("medium", True)


def test_what_runs_beside_it_is_taken_off():
    (finding,) = judge(RULE, hlo_trace(exchange(beside=True))).findings
    assert finding.cost_ns == round(SENT_NS - WORK_NS)


def test_with_a_recording_only_what_nothing_hides_counts():
    module = exchange(beside=True)
    ops = [("start", 0, 10), ("work", 4, 12), ("start", 50, 60), ("work", 58, 66)]
    (finding,) = judge(RULE, recorded_trace(module, ops=ops, steps=[(0, 50), (50, 100)])).findings
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.basis) == (12_000, 6_000, "measured")
    assert (finding.severity, "waits 6.00 us per step" in finding.detail) == ("high", True)
    ops = [("start", 0, 10), ("work", 0, 12)]
    (finding,) = judge(RULE, recorded_trace(module, ops=ops)).findings
    assert (finding.cost_ns, finding.basis) == (None, "structural")


def test_devices_that_share_the_cores_of_a_host_wait_at_no_cost():
    module = exchange(platform="cpu")
    (finding,) = judge(RULE, hlo_trace(module)).findings
    assert (finding.cost_ns, finding.basis, finding.evidence[0]["waits_ns"]) == (None, "structural", None)
    (finding,) = judge(RULE, recorded_trace(module, ops=[("start", 0, 10)], device="")).findings
    assert (finding.cost_ns, finding.basis, finding.evidence[0]["waits_ns"]) == (None, "structural", 10_000)


@pytest.mark.corpus
def test_eight_virtual_devices_wait_a_measured_time(corpus: Path):
    trace = xspace_reader.read(corpus / "aot" / "md.xplane.pb.gz")
    (finding,) = judge(RULE, trace).findings
    assert (finding.cost_ns, finding.basis, finding.where.label()) == (
        None,
        "structural",
        "/home/user/workload/md.py:13",
    )
    step = next(module for module in trace.hlo if "all-to-all.5" in module.computations[module.entry].by_name)
    rows = {row["collective"]: row["measured_ns"] for row in finding.evidence}
    assert set(rows) == {one.start.name for one in collectives_of(step) if one.kind == "all-to-all"}
    assert rows["all-to-all.5"] > 0
    for name, waited in rows.items():
        assert waited <= measured_ns(trace, step, [name]) / 24  # of three runs on eight devices


def test_the_threshold_is_four_kibibytes():
    assert _judge(ALL_TO_ALL, "jit(step)/mul", elements=1024).status == "flagged"
    assert _judge(ALL_TO_ALL, "jit(step)/mul", elements=1023).status == "clean"


@pytest.mark.parametrize(
    "path",
    [
        "jit(step)/shard_map/all_to_all",
        "jit(step)/jit(shmap_body)/shard_map/mul",
        "jit(step)/sharding_constraint",
        "jit(step)/jit(fn)/all_to_all",
    ],
)
def test_what_the_program_asked_for_is_clean(path: str):
    assert _judge(ALL_TO_ALL, path).status == "clean"


def test_the_dispatch_of_experts_written_as_an_einsum_is_said_to_be_meant():
    (finding,) = _judge(ALL_TO_ALL, "jit(step)/MoeBlock_0/dispatch/BSM,BSEC -> EBCM/dot_general").findings
    assert finding.severity == "low"
    assert "It is intended if" in finding.detail
    (other,) = _judge(ALL_TO_ALL, "jit(step)/mlp/dot_general").findings
    assert (other.severity, "meant" in other.detail) == ("medium", False)


def test_the_gathers_of_fsdp_are_clean():
    gather = "all-gather(%a), replica_groups={{0,1}}, dimensions={0}"
    assert _judge(gather, "jit(step)/jvp()/dot_general").status == "clean"


@pytest.mark.parametrize(("maker", "status"), [("mul", "flagged"), ("dot_general", "clean"), ("concatenate", "clean")])
def test_a_permutation_counts_only_where_no_neighbour_is_needed(maker: str, status: str):
    assert _judge(PERMUTE, f"jit(step)/{maker}").status == status


def test_without_paths_or_programs_it_abstains():
    outcome = _judge(ALL_TO_ALL, "", op_name=False)
    assert outcome.status == "abstained"
    assert "op_name" in (outcome.reason or "")
    assert judge(RULE, TraceBuilder(recorded=EVERYTHING - {"hlo"}).build()).status == "abstained"


def test_a_program_of_one_device_has_nothing_to_judge():
    text = "ENTRY %main (a: f32[8]) -> f32[8] {\n  ROOT %a = f32[8]{0} parameter(0)\n}"
    assert judge(RULE, hlo_trace(hlo_module(text))).status == "abstained"
    early = judge(RULE, hlo_trace(hlo_module(text, scheduled=False)))
    assert early.status == "abstained"
    assert "may still add collectives" in (early.reason or "")


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("path", "exchanges"),
    [
        ("md_fsdp", 5), ("md_tp", 0), ("md_smap", 0), ("gpu_md_fsdp", 6), ("gpu_md_fsdp_unrolled", 17),
        ("gpu_md_tp", 0), ("tpu_md_tp", 0),
    ],
)  # fmt: skip
def test_all_to_alls_of_real_programs(corpus: Path, path: str, exchanges: int):
    outcome = judge(RULE, hlo_trace(corpus_module(corpus / "aot" / f"{path}.hlo.txt.gz")))
    assert sum(len(one.evidence) for one in outcome.findings if one.subject == "unrequested all-to-all") == exchanges
    assert all(one.where.file is not None for one in outcome.findings)


def gathered(end: str) -> Outcome:
    """``f32[64]`` of each of 8 devices, gathered; ``end`` uses it."""
    meta = 'metadata={op_name="jit(f)/tanh" source_file="/home/me/train.py" source_line=9}'
    return judge(RULE, hlo_trace(hlo_module(f"""
        ENTRY %main (a: f32[16,64], i: s32[]) -> f32[128,8] {{
          %a = f32[16,64]{{1,0}} parameter(0)
          %i = s32[] parameter(1)
          %zero = s32[] constant(0)
          %device = u32[] partition-id()
          %here = s32[] convert(%device)
          %eight = s32[] constant(8)
          %begin = s32[] multiply(%here, %eight)
          %whole = f32[128,64]{{1,0}} all-gather(%a), replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}, {meta}
          %copied = f32[128,64]{{1,0}} copy(%whole)
          {end}
        }}
    """)))  # fmt: skip


def test_a_value_that_is_gathered_whole_and_cut_again_is_flagged_with_both_shardings():
    slice_ = "ROOT %part = f32[128,8]{1,0} dynamic-slice(%copied, %zero, %begin), dynamic_slice_sizes={128,8}"
    (finding,) = gathered(slice_).findings
    assert finding.title == "f32[128,64] is gathered whole to get from sharding [8,1] to [1,8]"
    assert (finding.subject, finding.where.line) == ("gathered whole and cut again", 9)
    assert finding.cost_bytes == 128 * 64 * 4


def test_a_value_that_something_needs_whole_or_that_is_cut_elsewhere_is_clean():
    other = "ROOT %part = f32[128,8]{1,0} dynamic-slice(%copied, %zero, %i), dynamic_slice_sizes={128,8}"
    assert gathered(other).status == "clean"
    both = """%e = f32[128,64]{1,0} negate(%copied)
          %part = f32[128,8]{1,0} dynamic-slice(%copied, %zero, %begin), dynamic_slice_sizes={128,8}
          %other = f32[128,8]{1,0} dynamic-slice(%e, %zero, %i), dynamic_slice_sizes={128,8}
          ROOT %sum = f32[128,8]{1,0} add(%part, %other)"""
    assert gathered(both).status == "clean"
