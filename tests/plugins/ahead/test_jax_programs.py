"""A program that was seen without data is the one that a real run compiles: the same HLO, before and after XLA."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.ahead import compilers
from tests.plugins.ahead.discovery import json_of_child

BOTH = """
    import functools, json, operator, runpy, sys
    import jax
    from jax._src.interpreters import pxla
    from perfscope.plugins.ahead.jax.discover import discover_programs

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
        go = operator.call if looks else functools.partial(discover_programs, devices=jax.devices())
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["attention"], "jit_step"),
        (["transformer"], "jit_step"),
        (["moe"], "jit_step"),
        (["ssm"], "jit_step"),
        (["attention", "--defect", "eager-update"], "jit_slopes_of"),
    ],
)
def test_it_is_what_a_real_run_compiles(words: list[str], name: str) -> None:
    module = f"perfscope.workloads.jax.{words[0]}"
    told = json_of_child(BOTH.format(words=[module, "--size", "tiny", "--steps", "2", *words[1:]]))
    (one,) = told["same"]
    assert one == {"name": name, "before": True, "after": True, "lines": True, "arguments": True}
    assert told["stopped"] == "it ran to its end"


SHARDED = """
    import json
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    from perfscope.plugins.ahead.jax.discover import discover_programs

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

    told = discover_programs(run, jax.devices())
    assert told.failure is None, told.failure.text
    for program in told.programs:
        program.lower()
    programs = [[one.function, one.calls, one.mesh, one.guessed] for one in told.programs]
    print(json.dumps([facts, programs, told.notes]))
"""


def test_arrays_over_several_devices() -> None:
    found: Any = json_of_child(SHARDED)
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


LARGE = """
    import functools, json, pathlib, re
    import jax, jax.numpy as jnp, numpy as np
    from perfscope.plugins.ahead.jax.discover import discover_programs

    D, F, V = 8192, 28672, 128256

    def layer(key):
        up, gate, down, q, out = jax.random.split(key, 5)
        normal = lambda key, *shape: (jax.random.normal(key, shape) * 0.02).astype(jnp.bfloat16)
        return {{"up": normal(up, D, F), "gate": normal(gate, D, F), "down": normal(down, F, D),
                "q": normal(q, D, D), "out": normal(out, D, D)}}

    def block(x, w):
        x = x + jax.nn.silu(x @ w["q"]) @ w["out"]
        return x + (jax.nn.silu(x @ w["gate"]) * (x @ w["up"])) @ w["down"]

    def loss_of(weights, tokens):
        x = weights["embedding"][tokens]
        for one in weights["layers"]:
            x = jax.checkpoint(block)(x, one)
        return jax.nn.logsumexp((x @ weights["embedding"].T).astype(jnp.float32), axis=-1).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def step(weights, tokens):
        loss, slopes = jax.value_and_grad(loss_of)(weights, tokens)
        return jax.tree.map(lambda w, s: w - 1e-3 * s, weights, slopes), loss

    def run():
        keys = jax.random.split(jax.random.key(0), {layers} + 1)
        embedding = jax.random.normal(keys[-1], (V, D), jnp.bfloat16)
        weights = {{"embedding": embedding, "layers": [layer(key) for key in keys[:-1]]}}
        facts.append(sum(w.size for w in jax.tree.leaves(weights)))
        while True:
            weights, loss = step(weights, np.zeros((4, 4096), np.int32))

    def most_held():  # KiB; of this program alone: ru_maxrss begins with what the parent held
        status = pathlib.Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status).group(1))

    facts = []
    told = discover_programs(run, jax.devices())
    assert told.failure is None, told.failure.text
    (program,) = told.programs
    text = program.lower().as_text()
    facts += [program.calls, len(program.arguments), most_held() >> 10]
    print(json.dumps([*facts, text.count("stablehlo.dot_general")]))
"""


@pytest.mark.parametrize("layers", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_model(layers: int) -> None:
    parameters, calls, arguments, mebibytes, products = json_of_child(LARGE.format(layers=layers), devices=1)
    assert parameters == 128256 * 8192 + layers * (3 * 8192 * 28672 + 2 * 8192 * 8192)  # 68 billion with 80
    assert (calls, arguments) == (101, 5 * layers + 2)
    assert mebibytes < 1024
    assert products > 8  # the lowering is a whole one


AROUND = """
    import json
    import jax, jax.numpy as jnp, numpy as np
    from perfscope.plugins.ahead.jax.discover import discover_programs
    batches = [(np.zeros((8, 64), np.float32), np.zeros(8, np.int32))] * 20

    def run():
        {body}

    counted = []
    told = discover_programs(run, jax.devices())
    assert told.failure is None, told.failure.text
    programs = [[one.function, one.calls] for one in told.programs]
    print(json.dumps([programs, told.complete, counted]))
"""

LINEN = """
        import flax.linen as nn, optax
        from flax.training.train_state import TrainState

        class Net(nn.Module):
            @nn.compact
            def __call__(self, x, train):
                x = nn.Dropout(0.1, deterministic=not train)(nn.gelu(nn.LayerNorm()(nn.Dense(512)(x))))
                return nn.Dense(10)(x)

        net, key = Net(), jax.random.key(0)
        weights = net.init(key, jnp.ones((1, 64)), train=False)["params"]
        state = TrainState.create(apply_fn=net.apply, params=weights, tx=optax.adamw(1e-3))

        @jax.jit
        def step(state, x, y):
            def loss_of(weights):
                dropped = {{"dropout": jax.random.fold_in(key, state.step)}}
                found = state.apply_fn({{"params": weights}}, x, train=True, rngs=dropped)
                return optax.softmax_cross_entropy_with_integer_labels(found, y).mean()
            loss, slopes = jax.value_and_grad(loss_of)(state.params)
            return state.apply_gradients(grads=slopes), loss

        for x, y in batches:
            state, loss = step(state, x, y)
        counted.append(int(state.step))
"""
NNX = """
        import optax
        from flax import nnx

        class Net(nnx.Module):
            def __init__(self, rngs):
                self.inner, self.norm = nnx.Linear(64, 512, rngs=rngs), nnx.BatchNorm(512, rngs=rngs)
                self.outer = nnx.Linear(512, 10, rngs=rngs)
            def __call__(self, x):
                return self.outer(nnx.relu(self.norm(self.inner(x))))

        net = Net(nnx.Rngs(0))
        optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)

        @nnx.jit
        def step(net, optimizer, x, y):
            loss_of = lambda net: optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()
            loss, slopes = nnx.value_and_grad(loss_of)(net)
            optimizer.update(net, slopes)
            return loss

        for x, y in batches:
            step(net, optimizer, x, y)
        counted.append(int(optimizer.step[...]))
"""
EQUINOX = """
        import equinox as eqx, optax
        net, rule = eqx.nn.MLP(64, 10, 512, 2, key=jax.random.key(0)), optax.adamw(1e-3)
        kept = rule.init(eqx.filter(net, eqx.is_array))

        @eqx.filter_jit
        def step(net, kept, x, y):
            loss_of = lambda net: optax.softmax_cross_entropy_with_integer_labels(jax.vmap(net)(x), y).mean()
            loss, slopes = eqx.filter_value_and_grad(loss_of)(net)
            more, kept = rule.update(slopes, kept, eqx.filter(net, eqx.is_array))
            return eqx.apply_updates(net, more), kept, loss

        for x, y in batches:
            net, kept, loss = step(net, kept, x, y)
        counted.append(int(kept[0].count))
"""


def _needs(*modules: str) -> None:
    """Skip where a library is not there; it may also lie on ``PYTHONPATH``."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize(
    ("body", "modules"),
    [(LINEN, ("flax", "optax")), (NNX, ("flax", "optax", "treescope")), (EQUINOX, ("equinox", "optax"))],
    ids=["linen", "nnx", "equinox"],
)
def test_a_training_loop_is_one_program_and_its_counter_counts(body: str, modules: tuple[str, ...]) -> None:
    _needs(*modules)
    path = tuple(one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one in sys.path)
    found: Any = json_of_child(
        AROUND.format(body=body.strip().replace("{{", "{").replace("}}", "}")), devices=1, path=path
    )
    programs, complete, counted = found
    assert complete
    assert counted == [20]
    assert programs == [["step", 20]]


CONFIG = Path(__file__).parents[3] / "fixtures" / "h100.txtpb"

GPU = """
    import json
    from pathlib import Path
    from perfscope.plugins.ahead.jax import plugin_devices
    from perfscope.plugins.ahead.targets import plugins

    found = plugins.find("gpu-nvidia")
    devices = plugin_devices.gpu_devices(found.library, found.platform, Path({config!r}).read_text(), "1x1x8")
    import jax, jax.export, jax.numpy as jnp, numpy as np
    from perfscope.plugins.ahead.jax.discover import discover_programs

    facts = {{}}

    def run():
        facts["default"] = [jax.default_backend(), jax.device_count(), jax.local_device_count(), jax.process_count()]
        facts["named"] = [jax.devices("gpu") == devices, jax.devices("cuda") == devices, jax.devices("cpu")[0].platform]
        facts["memory"] = jax.devices()[3].memory_stats()["bytes_in_use"]
        batch = jnp.ones((64, 64))
        facts["array"] = [batch.device.platform, jax.device_put(batch, jax.devices("cpu")[0]).device.platform]

        @jax.jit
        def told(x):
            jax.debug.print("{{}}", x.sum())
            return x * 2

        @jax.jit
        def calls(x):
            return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

        @jax.jit
        def chosen(x):
            return jax.lax.platform_dependent(x, cuda=lambda x: x * 3, default=lambda x: x * 5)

        told(batch), calls(batch), chosen(batch)
        exported = jax.export.export(jax.jit(lambda x: x @ x))(jax.ShapeDtypeStruct((64, 64), jnp.float32))
        facts["exported"] = [exported.platforms, len(exported.mlir_module_serialized) > 100]

    seen = discover_programs(run, devices)
    assert seen.failure is None, seen.failure.text
    told, calls, chosen = seen.programs
    facts["prints"] = [told.prints, "callback" in told.lower().as_text()]
    try:
        calls.lower()
    except Exception as error:
        facts["calls"] = str(error)
    text = chosen.lower().as_text()
    facts["chosen"] = ["dense<3.0" in text, "dense<5.0" in text]
    print(json.dumps([facts, seen.notes]))
"""


@pytest.mark.aot
def test_a_program_sees_the_target_and_is_lowered_for_it() -> None:
    compilers.require("gpu-nvidia")
    facts, notes = json_of_child(GPU.format(config=str(CONFIG)), devices=1)
    assert facts["default"] == ["gpu", 8, 8, 1]
    assert facts["named"] == [True, True, "cpu"]
    assert facts["memory"] == 0
    assert facts["array"] == ["gpu", "cpu"]
    assert facts["prints"] == [True, False]
    assert "pure_callback" in facts["calls"]
    assert facts["chosen"] == [True, False]
    assert facts["exported"] == [["cuda"], True]
    assert any(note.startswith("jit_told: what it prints") for note in notes)


TPU = """
    import json
    from perfscope.plugins.ahead.jax import plugin_devices
    from perfscope.plugins.ahead.targets import plugins

    found = plugins.find("tpu")
    devices = plugin_devices.tpu_devices(found.folder if found.own_folder else None, "v5e:2x4", {host!r})
    import jax
    from perfscope.plugins.ahead.jax.discover import discover_programs

    facts = []

    def run():
        facts.extend([jax.device_count(), jax.local_device_count(), jax.process_count(), jax.process_index()])
        jax.jit(lambda x: x + 1)(jax.numpy.ones(8))

    seen = discover_programs(run, devices)
    assert seen.failure is None, seen.failure.text
    print(json.dumps([facts, len(seen.programs)]))
"""


@pytest.mark.aot
@pytest.mark.parametrize(("host", "local", "processes"), [((2, 4, 1), 8, 1), (None, 4, 2)])
def test_a_slice_is_of_as_many_processes_as_hosts(host: tuple[int, ...] | None, local: int, processes: int) -> None:
    compilers.require("tpu")
    facts, programs = json_of_child(TPU.format(host=host), devices=1)
    assert facts == [8, local, processes, 0]
    assert programs == 1
