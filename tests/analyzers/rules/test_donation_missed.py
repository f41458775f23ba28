"""``donation_missed``: programs that keep the old copy of their state, and those that must not be named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.facts.jax_donation import refused_donations
from perfscope.analyzers.hlo.module import Alias, HloModule
from perfscope.analyzers.jax_log import CompileEvent
from perfscope.analyzers.load import load_one
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import Trace
from tests.build import TraceBuilder
from tests.hlo_build import hlo_module, hlo_trace

RULE = load_rule("donation_missed")


def step(elements: int) -> HloModule:
    """Weights and a batch of that many float32 values; new weights."""
    shape = f"f32[{elements}]"
    return hlo_module(
        f"""\
        ENTRY %main (w: {shape}, x: {shape}) -> {shape} {{
          %w = {shape}{{0}} parameter(0), metadata={{op_name="state.weights['up']"}}
          %x = {shape}{{0}} parameter(1), metadata={{op_name="batch"}}
          ROOT %n = {shape}{{0}} subtract(%w, %x), metadata={{op_name="jit(step)/sub" source_file="t.py" source_line=9}}
        }}
        """
    )


def test_a_state_that_is_replaced_is_named_with_the_line_to_write() -> None:
    outcome = judge(RULE, hlo_trace(step(1 << 20)))
    assert outcome.status == "flagged"
    (found,) = outcome.findings
    assert (found.cost_bytes, found.basis, found.cost_ns, found.severity) == (4 << 20, "structural", None, "medium")
    assert found.subject == "arguments of jit_step not donated"
    assert found.title == (
        "jit_step keeps state beside the new values (1 array, 4.00 MiB); donated, its peak as modelled of 12.0 MiB "
        "falls by about 4.00 MiB (33.3%)"
    )
    assert (found.where.file, found.where.line) == ("t.py", 9)
    assert 'donate_argnames=("state",)' in found.advice
    assert "If the caller does not use state again" in found.advice
    assert found.evidence[0]["argument"] == "state.weights['up']"
    assert found.evidence[0]["size_bytes"] == 4 << 20


def test_donated_it_is_clean() -> None:
    module = replace(step(1 << 20), aliases=(Alias(output=(), parameter=0),))
    assert judge(RULE, hlo_trace(module)).status == "clean"


def test_below_a_mebibyte_it_is_clean() -> None:
    assert judge(RULE, hlo_trace(step((1 << 18) - 1))).status == "clean"
    assert judge(RULE, hlo_trace(step(1 << 18))).status == "flagged"


def test_a_peak_that_lies_elsewhere_would_not_fall() -> None:
    module = hlo_module(
        """\
        ENTRY %main (w: f32[1048576]) -> f32[1048576] {
          %w = f32[1048576]{0} parameter(0), metadata={op_name="state.w"}
          %many = f32[8,1048576]{1,0} broadcast(%w), dimensions={1}
          %zero = f32[] constant(0)
          %sum = f32[1048576]{0} reduce(%many, %zero), dimensions={0}, to_apply=%add
          ROOT %n = f32[1048576]{0} subtract(%w, %sum)
        }
        %add (a: f32[], b: f32[]) -> f32[] {
          %a = f32[] parameter(0)
          %b = f32[] parameter(1)
          ROOT %c = f32[] add(%a, %b)
        }
        """
    )
    assert judge(RULE, hlo_trace(module)).status == "clean"


def test_arguments_without_names_are_counted() -> None:
    text = """\
    ENTRY %main (w: f32[1048576], g: f32[1048576]) -> f32[1048576] {
      %w = f32[1048576]{0} parameter(0)
      %g = f32[1048576]{0} parameter(1)
      %d = f32[1048576]{0} multiply(%g, %g), metadata={op_name="jit(f)/transpose(jvp())/mul"}
      ROOT %n = f32[1048576]{0} subtract(%w, %d)
    }
    """
    (found,) = judge(RULE, hlo_trace(hlo_module(text))).findings
    assert "keeps old arguments beside the new values" in found.title
    assert "donate_argnums=(...)" in found.advice


def test_a_program_before_optimization_cannot_be_judged() -> None:
    outcome = judge(RULE, hlo_trace(replace(step(1 << 20), is_scheduled=False)))
    assert outcome.status == "abstained"
    assert "no compiled program" in (outcome.reason or "")


def test_without_programs_it_abstains() -> None:
    outcome = judge(RULE, TraceBuilder().build())
    assert outcome.status == "abstained"
    assert "XLA" in (outcome.reason or "")


CLEAN = (
    "aot/gpu_attn_naive.hlo.txt.gz", "aot/gpu_moe_ragged.hlo.txt.gz", "aot/gpu_md_fsdp.hlo.txt.gz",
    "aot/tpu_md_tp.hlo.txt.gz", "aot/gpu_remat_h100.hlo.txt.gz", "aot/sync0.xplane.pb.gz", "aot/int.xplane.pb.gz",
    "hlo_pb/JAX-Toolbox__module_0016.jit_train_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz",
    "hlo_pb/TraceLens__jit_forward_3d_conv_15.hlo_proto.pb", "hlo_text/xla__mobilenet_v2.hlo.gz",
)  # fmt: skip


@pytest.mark.corpus
@pytest.mark.parametrize("file", CLEAN)
def test_real_programs_that_donate_or_have_nothing_to_donate(corpus: Path, file: str) -> None:
    outcome = judge(RULE, load_one(corpus / file))
    assert outcome.status in ("clean", "abstained")
    if outcome.status == "abstained":
        assert "before" in str(load_one(corpus / file).source.notes)


def refused(*shapes: str, count: int | None = None, module: str | None = "jit_step", line: int = 8) -> CompileEvent:
    return CompileEvent(kind="donation_unusable", end_ns=1, module=module, shapes=shapes,
                        count=len(shapes) if count is None else count, file="train.py", line=line)  # fmt: skip


def test_buffers_that_jax_refused_are_named_with_their_line() -> None:
    trace = hlo_trace(replace(step(1 << 20), aliases=(Alias(output=(), parameter=0),)))
    again = refused("float32[512,1024]", "bfloat16[2048,1024]", "int32[]", "bool[16]")
    trace.compile_events = (again, again, refused("float32[8]", line=9))
    (found,) = judge(RULE, trace).findings
    assert found.title == (
        "jax could not use 4 donated buffers of jit_step (6.00 MiB; float32[512,1024], bfloat16[2048,1024], int32[] "
        "...): no result of the program has their shape and type"
    )
    assert (found.where.file, found.where.line, found.basis, found.cost_bytes) == ("train.py", 8, "structural", None)
    assert [row["size_bytes"] for row in found.evidence] == [4 << 20, 2 << 20, 16, 4]


def test_shapes_that_were_cut_are_counted() -> None:
    trace = hlo_trace(replace(step(1 << 20), aliases=(Alias(output=(), parameter=0),)))
    trace.compile_events = (refused("float32[1024,1024]", count=90, module=None),)
    (found,) = judge(RULE, trace).findings
    assert "90 donated buffers of a program (more than 4.00 MiB; float32[1024,1024]):" in found.title


def test_small_ones_and_none_are_clean() -> None:
    trace = hlo_trace(replace(step(1 << 20), aliases=(Alias(output=(), parameter=0),)))
    trace.compile_events = (refused("float32[262143]"), CompileEvent(kind="retrace", end_ns=2))
    assert judge(RULE, trace).status == "clean"


@pytest.mark.parametrize(
    ("shape", "size"),
    [("float8_e4m3fn[3]", 3), ("int4[16]", 8), ("complex64[2]", 16), ("bool[5]", 5), ("uint32[2,0]", 0)],
)
def test_bytes_of_shapes(shape: str, size: int) -> None:
    (found,) = refused_donations(events_of(refused(shape)))
    assert found.bytes == size


def events_of(*events: CompileEvent) -> Trace:
    trace = hlo_trace(step(8))
    trace.compile_events = events
    return trace
