"""What a program sees of devices that are not there, and what is lowered for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import aot
from tests.profiler.aot.seen import in_child

CONFIG = Path(__file__).parents[3] / "fixtures" / "h100.txtpb"

GPU = """
    import json
    from pathlib import Path
    from perfscope.profiler.ahead import jax_plugin_compat, plugins

    found = plugins.find("gpu-nvidia")
    devices = jax_plugin_compat.gpu_devices(found.library, found.platform, Path({config!r}).read_text(), "1x1x8")
    import jax, jax.export, jax.numpy as jnp, numpy as np
    from perfscope.profiler.ahead.jax.discover import seen_programs

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

    seen = seen_programs(run, devices)
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
    aot.require("gpu-nvidia")
    facts, notes = in_child(GPU.format(config=str(CONFIG)), devices=1)
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
    from perfscope.profiler.ahead import jax_plugin_compat, plugins

    found = plugins.find("tpu")
    devices = jax_plugin_compat.tpu_devices(found.folder if found.own_folder else None, "v5e:2x4", {host!r})
    import jax
    from perfscope.profiler.ahead.jax.discover import seen_programs

    facts = []

    def run():
        facts.extend([jax.device_count(), jax.local_device_count(), jax.process_count(), jax.process_index()])
        jax.jit(lambda x: x + 1)(jax.numpy.ones(8))

    seen = seen_programs(run, devices)
    assert seen.failure is None, seen.failure.text
    print(json.dumps([facts, len(seen.programs)]))
"""


@pytest.mark.aot
@pytest.mark.parametrize(("host", "local", "processes"), [((2, 4, 1), 8, 1), ((2, 2, 1), 4, 2), (None, 4, 2)])
def test_a_slice_is_of_as_many_processes_as_hosts(host: tuple[int, ...] | None, local: int, processes: int) -> None:
    aot.require("tpu")
    facts, programs = in_child(TPU.format(host=host), devices=1)
    assert facts == [8, local, processes, 0]
    assert programs == 1
