"""``donation_missed``: programs that keep the old copy of their state, and those that must not be named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.buffers import assigned_memory
from perfscope.analyzers.hlo.module import Alias, HloModule
from perfscope.analyzers.hlo.parse.proto import module_of_proto
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.programs.donation import donation_of, refused_bytes, refused_donations, updates, writers
from perfscope.analyzers.readers.load import load_one
from perfscope.analyzers.registry import load_rule
from perfscope.model.jax_log import CompileEvent
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.hlo_build import hlo_module, hlo_trace


def program(body: str) -> HloModule:
    """Arguments ``w``, ``m``, ``x`` of 4,096 bytes."""
    head = "\n".join(f'  %{name} = f32[1024]{{0}} parameter({n}), metadata={{op_name="state.{name}"}}' for n, name in
                     enumerate("wmx"))  # fmt: skip
    return hlo_module(f"ENTRY %main (w: f32[1024], m: f32[1024], x: f32[1024]) -> f32[] {{\n{head}\n{body}\n}}\n")


def pairs(module: HloModule) -> dict[str, int]:
    return {one.parameter.name: one.output for one in updates(module, Schedule(module)) if one.free}


ADAM = """\
  %m2 = f32[1024]{0} add(%m, %x)
  %w2 = f32[1024]{0} subtract(%w, %m2)
  ROOT %out = (f32[1024]{0}, f32[1024]{0}) tuple(%w2, %m2)"""


def test_weights_and_moment_are_paired_with_their_new_values() -> None:
    # the new weights are computed from the moment as well: the moment's own result comes first
    assert pairs(program(ADAM)) == {"w": 0, "m": 1}


def test_what_is_donated_is_said_so_and_missed_no_more() -> None:
    module = replace(program(ADAM), aliases=(Alias(output=(0,), parameter=0), Alias(output=(1,), parameter=1)))
    assert [one.donated for one in updates(module, Schedule(module))] == [True, True]
    assert donation_of(module) is None


def test_an_argument_that_is_read_later_is_not_free() -> None:
    module = program(
        """\
  %w2 = f32[1024]{0} negate(%w)
  %late = f32[512]{0} slice(%w), slice={[0:512]}
  ROOT %out = (f32[1024]{0}, f32[512]{0}) tuple(%w2, %late)"""
    )
    (found,) = updates(module, Schedule(module))
    assert (found.parameter.name, found.output, found.free) == ("w", 0, False)
    assert donation_of(module) is None


def test_each_argument_serves_one_result() -> None:
    module = program(
        """\
  %w2 = f32[1024]{0} subtract(%w, %x)
  %w3 = f32[1024]{0} sine(%w)
  ROOT %out = (f32[1024]{0}, f32[1024]{0}) tuple(%w2, %w3)"""
    )
    assert pairs(module) == {"x": 0, "w": 1}


def test_a_function_of_an_array_is_no_state() -> None:
    module = hlo_module(
        """\
        ENTRY %main (x: f32[1024]) -> f32[1024] {
          %x = f32[1024]{0} parameter(0), metadata={op_name="x"}
          ROOT %y = f32[1024]{0} exponential(%x), metadata={op_name="jit(exp)/exp"}
        }
        """
    )
    (found,) = updates(module, Schedule(module))
    assert (found.free, found.is_state) == (True, False)
    assert donation_of(module) is None


def test_a_gradient_is_no_update_though_its_shape_is_that_of_its_weights() -> None:
    module = program(
        """\
  %g = f32[1024]{0} multiply(%w, %x), metadata={op_name="jit(f)/transpose(jvp())/mul"}
  ROOT %out = (f32[1024]{0}) tuple(%g)"""
    )
    assert pairs(module) == {}


def test_another_shape_is_no_update() -> None:
    module = program(
        """\
  %half = f32[512]{0} slice(%w), slice={[0:512]}
  ROOT %out = (f32[512]{0}) tuple(%half)"""
    )
    assert pairs(module) == {}


def test_a_cache_that_is_written_into_in_a_loop() -> None:
    module = hlo_module(
        """\
        %body (s: (s32[], f32[64,8])) -> (s32[], f32[64,8]) {
          %s = (s32[], f32[64,8]{1,0}) parameter(0)
          %i = s32[] get-tuple-element(%s), index=0
          %c = f32[64,8]{1,0} get-tuple-element(%s), index=1
          %one = s32[] constant(1)
          %next = s32[] add(%i, %one)
          %zero = s32[] constant(0)
          %new = f32[1,8]{1,0} constant({...})
          %written = f32[64,8]{1,0} dynamic-update-slice(%c, %new, %i, %zero)
          ROOT %out = (s32[], f32[64,8]{1,0}) tuple(%next, %written)
        }
        %cond (s: (s32[], f32[64,8])) -> pred[] {
          %s = (s32[], f32[64,8]{1,0}) parameter(0)
          %i = s32[] get-tuple-element(%s), index=0
          %n = s32[] constant(16)
          ROOT %go = pred[] compare(%i, %n), direction=LT
        }
        ENTRY %main (cache: f32[64,8]) -> f32[64,8] {
          %cache = f32[64,8]{1,0} parameter(0)
          %copy = f32[64,8]{1,0} copy(%cache)
          %i = s32[] constant(0)
          %state = (s32[], f32[64,8]{1,0}) tuple(%i, %copy)
          %loop = (s32[], f32[64,8]{1,0}) while(%state), condition=%cond, body=%body
          ROOT %result = f32[64,8]{1,0} get-tuple-element(%loop), index=1
        }
        """
    )
    found = donation_of(module)
    assert found is not None
    assert [one.parameter.name for one in found.updates] == ["cache"]
    assert (found.bytes, found.saved_bytes, found.assigned) == (2048, 2048, False)


def test_a_peak_that_lies_elsewhere_is_not_saved() -> None:
    module = program(
        """\
  %t1 = f32[8192]{0} broadcast(%x), dimensions={0}
  %r = f32[1024]{0} slice(%t1), slice={[0:1024]}
  %w2 = f32[1024]{0} subtract(%w, %r)
  ROOT %out = (f32[1024]{0}) tuple(%w2)"""
    )
    found = donation_of(module)
    assert found is not None
    assert (found.bytes, found.saved_bytes) == (4096, 0)


FILES = {
    "aot/gpu_md_fsdp.hlo.txt.gz": 1.0,
    "hlo_pb/JAX-Toolbox__module_0016.jit_train_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz": 0.9,
    "hlo_text/Primus__moe_dp1_pp2_ep8.gfx950_after_opt.txt.gz": 0.9,
}
"""Programs that donate their state, and the share of it that is found again without being told."""


@pytest.mark.corpus
@pytest.mark.parametrize(("file", "share"), FILES.items())
def test_pairs_of_real_programs_are_those_that_jax_made(corpus: Path, file: str, share: float) -> None:
    (module,) = load_one(corpus / file).hlo
    told = {(one.parameter, one.output[0]) for one in module.aliases}
    blind = replace(module, aliases=())
    found = {(one.parameter.parameter_number, one.output) for one in updates(blind, Schedule(blind))}
    assert found <= told
    assert len(found) >= share * len(told)
    assert donation_of(module) is None


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["gpu_attn_naive", "gpu_moe_ragged", "gpu_ssm_assoc", "gpu_remat_h100"])
def test_functions_that_return_gradients_could_be_given_nothing(corpus: Path, name: str) -> None:
    (module,) = load_one(corpus / "aot" / f"{name}.hlo.txt.gz").hlo
    assert donation_of(module) is None


@pytest.mark.slow
@pytest.mark.jax
def test_the_predicted_peak_is_that_of_the_donating_twin() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    from perfscope.profiler.jax.hlo import snapshot
    from perfscope.workloads.jax.attention import SIZES, VARIANTS, Block
    from perfscope.workloads.jax.data import batches
    from perfscope.workloads.jax.options import parse
    from perfscope.workloads.jax.training import LanguageModel, start, step_of

    options = parse("", VARIANTS, SIZES, ["--size", "tiny"])
    model = LanguageModel(Block, options)

    def compiled(name: str, **jit: Any) -> HloModule:
        step = step_of(model)
        step.__name__ = name
        kept = jax.jit(step, **jit).lower(start(model), next(iter(batches(options)))).compile()
        (proto,) = [one.proto for one in snapshot() if one.name.startswith(f"jit_{name}")]
        assert kept is not None
        return module_of_proto(proto, name)

    found = donation_of(compiled("keeping"))
    assert found is not None
    assert found.assigned
    assert len(found.updates) == 43  # weights, two moments of each, and the counter
    giving = compiled("giving", donate_argnums=0)
    assert donation_of(giving) is None
    twin = assigned_memory(giving)
    assert twin is not None
    assert 0 < found.saved_bytes < found.bytes
    # XLA put temporaries into what the results take: so much less is saved than their bytes
    assert found.peak_donated_bytes == pytest.approx(twin.peak_bytes, rel=0.02)


RULE = load_rule("donation_missed")


def step(elements: int) -> HloModule:
    """Weights and a batch of that many float32 values; new weights."""
    shape = f"f32[{elements}]"
    return hlo_module(
        f"""\
        ENTRY %main (w: {shape}, x: {shape}) -> {shape} {{
          %w = {shape}{{0}} parameter(0), metadata={{op_name="state.weights['mlp/up']"}}
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
    assert "peak as modelled of 12.0 MiB" in found.detail
    assert (found.where.file, found.where.line) == ("t.py", 9)
    assert 'donate_argnames=("state",)' in found.advice
    assert "caller does not use state again" in found.advice
    assert found.evidence[0]["argument"] == "state.weights['mlp/up']"
    assert found.evidence[0]["size_bytes"] == 4 << 20


def test_a_state_made_by_a_call_has_the_line_of_what_is_called() -> None:
    shape = f"f32[{1 << 20}]"
    module = hlo_module(
        f"""\
        %parallel_subtract (p: {shape}, q: {shape}) -> {shape} {{
          %p = {shape}{{0}} parameter(0)
          %q = {shape}{{0}} parameter(1)
          ROOT %n = {shape}{{0}} subtract(%p, %q), metadata={{op_name="jit(step)/sub" source_file="t.py" source_line=9}}
        }}
        ENTRY %main (w: {shape}, x: {shape}) -> {shape} {{
          %w = {shape}{{0}} parameter(0), metadata={{op_name="state.weights['mlp/up']"}}
          %x = {shape}{{0}} parameter(1), metadata={{op_name="batch"}}
          ROOT %call = {shape}{{0}} call(%w, %x), to_apply=%parallel_subtract
        }}
        """
    )
    assert [one.name for one in writers(module, "call")] == ["call", "n"], "XLA assigns the buffer to the latter"
    (found,) = judge(RULE, hlo_trace(module)).findings
    assert (found.where.file, found.where.line) == ("t.py", 9)


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
    assert "old arguments" in found.detail
    assert "donate_argnums=(...)" in found.advice


def test_equinox_programs_are_told_of_filter_jit() -> None:
    text = """\
    ENTRY %main (w: f32[1048576], g: f32[1048576]) -> f32[1048576] {
      %w = f32[1048576]{0} parameter(0), metadata={op_name="dynamic_nodonate[0]"}
      %g = f32[1048576]{0} parameter(1), metadata={op_name="dynamic_nodonate[1]"}
      %d = f32[1048576]{0} multiply(%g, %g), metadata={op_name="jit(f)/transpose(jvp())/mul"}
      ROOT %n = f32[1048576]{0} subtract(%w, %d)
    }
    """
    (found,) = judge(RULE, hlo_trace(hlo_module(text))).findings
    assert 'eqx.filter_jit(donate="all")' in found.advice
    assert "dynamic_nodonate" not in found.title + found.advice


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
    trace = replace(trace, compile_events=(again, again, refused("float32[8]", line=9)))
    (found,) = judge(RULE, trace).findings
    assert "float32[512,1024], bfloat16[2048,1024], int32[] ..." in found.detail
    assert (found.where.file, found.where.line, found.basis, found.cost_bytes) == ("train.py", 8, "structural", None)
    assert [row["size_bytes"] for row in found.evidence] == [4 << 20, 2 << 20, 16, 4]


def test_shapes_that_were_cut_are_counted() -> None:
    trace = hlo_trace(replace(step(1 << 20), aliases=(Alias(output=(), parameter=0),)))
    trace = replace(trace, compile_events=(refused("float32[1024,1024]", count=90, module=None),))
    (found,) = judge(RULE, trace).findings
    assert "90 donated buffers" in found.title
    assert "more than 4.00 MiB" in found.title


def test_small_ones_and_none_are_clean() -> None:
    trace = hlo_trace(replace(step(1 << 20), aliases=(Alias(output=(), parameter=0),)))
    trace = replace(trace, compile_events=(refused("float32[262143]"), CompileEvent(kind="retrace", end_ns=2)))
    assert judge(RULE, trace).status == "clean"


@pytest.mark.parametrize(
    ("shape", "size"),
    [("float8_e4m3fn[3]", 3), ("int4[16]", 8), ("complex64[2]", 16), ("bool[5]", 5), ("uint32[2,0]", 0)],
)
def test_bytes_of_shapes(shape: str, size: int) -> None:
    (found,) = refused_donations(events_of(refused(shape)))
    assert refused_bytes(found) == size


def events_of(*events: CompileEvent) -> Trace:
    trace = hlo_trace(step(8))
    return replace(trace, compile_events=events)
