"""Arguments that could be given away: pairs in hand-written programs, in real ones, and against compiled twins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.facts.hlo_donation import donation_of, updates
from perfscope.analyzers.facts.hlo_memory import memory_timeline
from perfscope.analyzers.hlo.module import Alias, HloModule
from perfscope.analyzers.hlo.proto import module_of_proto
from perfscope.analyzers.hlo.schedule import Schedule
from perfscope.analyzers.load import load_one
from tests.hlo_build import hlo_module


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


@pytest.mark.jax
def test_the_predicted_peak_is_that_of_the_donating_twin() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    from perfscope.profiler.captures.jax_hlo import snapshot
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
    twin = memory_timeline(giving)
    assert twin is not None
    assert 0 < found.saved_bytes < found.bytes
    # XLA put temporaries into what the results take: so much less is saved than their bytes
    assert found.peak_donated_bytes == pytest.approx(twin.peak_bytes, rel=0.02)
