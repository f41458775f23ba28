"""A program compiled here and now: text, module proto and the profiler's snapshot give one model."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analyzers.facts.hlo_memory import memory_timeline
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.proto import module_of_proto
from perfscope.analyzers.hlo.scope import scope_of
from perfscope.analyzers.hlo.text import module_of
from tests.analyzers.hlo.equal import differences

pytestmark = pytest.mark.jax
jax: Any = pytest.importorskip("jax", reason="jax is not installed")


@pytest.fixture(scope="module")
def compiled() -> Any:
    import jax.numpy as jnp

    def loss(weights: Any, inputs: Any) -> Any:
        def layer(carry: Any, weight: Any) -> Any:
            with jax.named_scope("mlp"):
                return jnp.tanh(carry @ weight), None

        out, _ = jax.lax.scan(jax.checkpoint(layer), inputs, weights)
        return (out**2).sum()

    shapes = jax.ShapeDtypeStruct((3, 64, 64), "float32"), jax.ShapeDtypeStruct((32, 64), "float32")
    return jax.jit(jax.grad(loss)).lower(*shapes).compile()


@pytest.fixture(scope="module")
def text(compiled: Any) -> HloModule:
    return module_of(compiled.as_text().splitlines(), "m")


def test_text_and_proto_agree(compiled: Any, text: HloModule) -> None:
    (module,) = compiled.runtime_executable().hlo_modules()
    assert list(differences(text, module_of_proto(module.as_serialized_hlo_module_proto(), "m"))) == []


def test_what_the_program_says_of_itself(text: HloModule) -> None:
    assert text.platform == "cpu"
    assert {one.trip_count for _, one in text.instructions() if one.opcode == "while"} == {3}
    named = [one for _, one in text.instructions() if one.op_name and one.opcode != "parameter"]
    scopes = [scope_of(one.op_name) for one in named]
    assert {one.phase for one in scopes} == {"forward", "backward", "recompute"}
    assert any(one.path == ("mlp",) and one.primitive == "dot_general" for one in scopes)
    assert {one.file for one in named if one.file} == {__file__}


def test_buffers_of_the_optimized_module_cover_its_peak(compiled: Any) -> None:
    from jax._src.lib import _profiler

    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = options.python_tracer_level = 0
    from perfscope.analyzers.protos import message

    space = message("xspace.XSpace").FromString(_profiler.ProfilerSession(options).stop())
    modules = [
        module_of_proto(stat.bytes_value, entry.value.name)
        for plane in space.planes
        for entry in plane.event_metadata
        for stat in entry.value.stats
        if stat.bytes_value
    ]
    (mine,) = (one for one in modules if one.name == "jit_loss")
    timeline = memory_timeline(mine)
    assert timeline is not None
    analysis = compiled.memory_analysis()
    bound = analysis.argument_size_in_bytes + analysis.output_size_in_bytes + analysis.temp_size_in_bytes
    assert bound - 8192 < timeline.peak_bytes <= bound
