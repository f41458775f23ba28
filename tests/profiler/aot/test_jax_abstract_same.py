"""A program that was seen without data is the one that a real run compiles: the same HLO, before and after XLA."""

from __future__ import annotations

from typing import Any

import pytest

from tests.profiler.aot.seen import in_child

BOTH = """
    import functools, json, operator, runpy, sys
    import jax
    from jax._src.interpreters import pxla
    from perfscope.profiler.ahead.jax.discover import seen_programs

    module, *arguments = {words!r}
    sys.argv = [module, *arguments]
    compiled, real = {{}}, pxla.MeshComputation.compile

    def compile(self, *more, **named):
        found = real(self, *more, **named)
        if looks and self._name not in compiled:  # the first of a name: jit(step)
            compiled[self._name] = (self.as_text("hlo", debug_info=True), found.as_text())
        return found

    pxla.MeshComputation.compile = compile
    told = None
    for looks in (False, True):  # one line for both, which the programs' stacks hold
        run = lambda: runpy.run_module(module, run_name="__main__", alter_sys=True)
        go = operator.call if looks else functools.partial(seen_programs, devices=jax.devices())
        found = go(run)
        told = told or found
    assert told.failure is None, told.failure.text
    same = []
    for program in told.programs:
        lowered = program.lower()
        before, after = compiled[f"jit({{program.function}})"]
        same.append({{
            "name": program.name,
            "before": lowered._lowering.as_text("hlo", debug_info=True) == before,
            "after": lowered.compile().as_text() == after,
            "lines": "training.py" in after,
            "arguments": "state.weights[\\\\'head_DV\\\\']" in after,
        }})
    print(json.dumps({{"same": same, "stopped": told.stopped}}))
"""


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["attention"], "jit_step"),
        (["transformer"], "jit_step"),
        pytest.param(["moe"], "jit_step", marks=pytest.mark.slow),
        pytest.param(["ssm"], "jit_step", marks=pytest.mark.slow),
        pytest.param(["attention", "--defect", "eager-update"], "jit_slopes_of", marks=pytest.mark.slow),
    ],
)
def test_it_is_what_a_real_run_compiles(words: list[str], name: str) -> None:
    module = f"perfscope.workloads.jax.{words[0]}"
    told = in_child(BOTH.format(words=[module, "--size", "tiny", "--steps", "2", *words[1:]]))
    (one,) = told["same"]
    assert one == {"name": name, "before": True, "after": True, "lines": True, "arguments": True}
    assert told["stopped"] == "it ran to its end"


SHARDED = """
    import json
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    from perfscope.profiler.ahead.jax.discover import seen_programs

    facts = {}

    def run():
        facts["devices"] = [jax.device_count(), jax.local_device_count(), jax.process_count(), len(jax.devices())]
        mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        cut = NamedSharding(mesh, P("data", "model"))
        huge = (1 << 20, 1 << 20)
        facts["zeros"] = jnp.zeros(huge, device=cut).sharding == cut
        facts["callback"] = jax.make_array_from_callback(huge, cut, lambda at: 1 / 0, dtype=np.float32).sharding == cut
        local = np.broadcast_to(np.float32(1), huge)
        facts["local"] = jax.make_array_from_process_local_data(cut, local).sharding == cut
        parts = [jax.device_put(np.ones((16, 32), np.float32), one) for one in jax.devices()]
        facts["parts"] = jax.make_array_from_single_device_arrays((64, 64), cut, parts).shape
        w = jax.device_put(np.ones((64, 64), np.float32), cut)
        facts["shard"] = [w.addressable_shards[0].data.shape, len(w.addressable_shards)]
        facts["like"] = jnp.zeros_like(w).sharding == cut
        facts["sum"] = (w + 1).sharding == cut

        @jax.jit
        def step(w, count):
            return w * 2, count + 1, w[:, :3]

        count = 0
        for _ in range(3):
            w, count, _ = step(w, count)  # neither donated nor asked to lie anywhere
        facts["count"] = int(count)
        mapped = jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
        facts["mapped"] = mapped(w).shape
        facts["pmap"] = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jnp.ones((8, 5000))).shape
        with jax.set_mesh(jax.make_mesh((8,), ("all",))):
            x = jax.device_put(np.ones((64, 64), np.float32), P("all"))
            facts["explicit"] = str(jax.typeof(jnp.sin(x) * 2))
            jax.jit(lambda x: jnp.sin(x))(x)

    told = seen_programs(run, jax.devices())
    assert told.failure is None, told.failure.text
    for program in told.programs:
        program.lower()
    programs = [[one.function, one.calls, one.mesh, one.guessed] for one in told.programs]
    print(json.dumps([facts, programs, told.notes]))
"""


def test_arrays_over_several_devices() -> None:
    found: Any = in_child(SHARDED)
    facts, programs, notes = found
    assert facts.pop("devices") == [8, 8, 1, 8]
    assert facts.pop("parts") == [64, 64]
    assert facts.pop("shard") == [[16, 32], 8]
    assert facts.pop("mapped") == [16, 64]
    assert facts.pop("pmap") == [8, 5000]
    assert facts.pop("explicit") == "float32[64@all,64]"
    assert facts.pop("count") == 3
    assert all(facts.values()), facts
    step, mapped, pmapped, explicit = programs
    assert step == ["step", 3, {"data": 4, "model": 2}, 1]
    assert (mapped[0], pmapped[1], explicit[2]) == ("shard_map", 1, {"all": 8})
    assert any(note.startswith("jit_step: where 1 of its arguments lie") for note in notes)
