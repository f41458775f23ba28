"""Compile-only devices of the compiler plugins, and programs compiled for them.

Uses private interfaces of jaxlib (`PLUGIN_INTERFACES`, tested with jax 0.10.2); a missing one is reported in one line
with the feature that needs it. Import this module only in the child process, which may load plugins.
"""

from __future__ import annotations

import importlib
import operator
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfscope.model.errors import DataError

PLUGIN_INTERFACES: dict[str, tuple[str, str]] = {
    "DeviceList": ("jaxlib.xla_client", "DeviceList"),
    "get_compile_options": ("jax._src.compiler", "get_compile_options"),
    "initialize_pjrt_plugin": ("jaxlib.xla_client", "initialize_pjrt_plugin"),
    "ir": ("jax._src.lib.mlir", "ir"),
    "load_pjrt_plugin_dynamically": ("jaxlib.xla_client", "load_pjrt_plugin_dynamically"),
    "make_c_api_device_topology": ("jaxlib.xla_client", "make_c_api_device_topology"),
    "make_ir_context": ("jax._src.interpreters.mlir", "make_ir_context"),
    "pjrt_plugin_initialized": ("jaxlib.xla_client", "pjrt_plugin_initialized"),
    "HloPrintOptions": ("jaxlib._hlo", "HloPrintOptions"),
    "hlo_module_from_text": ("jaxlib._hlo", "hlo_module_from_text"),
    "mlir": ("jaxlib.xla_client", "_xla.mlir"),
}
"""Interfaces for loading a compiler plugin and compiling with it; a missing one is reported when used."""
_PORTABLE = b"\rStableHLO_v"
"""Bytes after the magic in bytecode written by ``jax.export`` and ``stablehlo.serialize_portable_artifact``."""
_BEFORE = {
    "HloPrintOptions": ("jaxlib._jax", "HloPrintOptions"),
    "hlo_module_from_text": ("jaxlib._jax", "hlo_module_from_text"),
}
"""Location of an interface in earlier releases."""


def _plugin_interface(name: str, purpose: str) -> Any:
    for module, attribute in (PLUGIN_INTERFACES[name], _BEFORE.get(name, PLUGIN_INTERFACES[name])):
        try:
            return operator.attrgetter(attribute)(importlib.import_module(module))
        except (ImportError, AttributeError):
            continue
    raise DataError(
        f"this jax has no {'.'.join(PLUGIN_INTERFACES[name])}, which {purpose} needs; see `perfscope doctor`"
    )


def _compile_only_gpus(library: Path, platform: str, config: str, topology: str) -> Sequence[Any]:
    """Compile-only devices of a GPU plugin (a shared object); ``config``: XLA's target config."""
    purpose = "compiling for GPUs that are not there"
    load = _plugin_interface("load_pjrt_plugin_dynamically", purpose)
    is_initialized = _plugin_interface("pjrt_plugin_initialized", purpose)
    initialize = _plugin_interface("initialize_pjrt_plugin", purpose)
    describe = _plugin_interface("make_c_api_device_topology", purpose)
    client = load(platform, str(library))
    if not is_initialized(platform):
        initialize(platform)
    described = describe(client, "perfscope", target_config=config, topology=topology)
    make = getattr(described, "_make_compile_only_devices", None)
    if make is None:
        raise DataError(f"this jaxlib's topology has no _make_compile_only_devices, which {purpose} needs")
    devices: Sequence[Any] = make()
    return devices


def _parsed_module(code: bytes) -> tuple[Any, int]:
    """A serialized MLIR module, and the number of its partitions."""
    purpose = "compiling an exported program"
    ir = _plugin_interface("ir", purpose)
    with _plugin_interface("make_ir_context", purpose)():
        if _PORTABLE in code[:32]:  # in the dialect that is stable across versions
            module = _plugin_interface("mlir", purpose).deserialize_portable_artifact(code)
        else:
            module = ir.Module.parse(code)
    attributes = module.operation.attributes
    if "mhlo.num_partitions" not in attributes:
        return module, 1
    return module, int(ir.IntegerAttr(attributes["mhlo.num_partitions"]).value)


def stablehlo_of_hlo(data: bytes) -> bytes:
    """StableHLO's bytecode of an HLO module before optimization, from its text or its proto."""
    purpose = "compiling an HLO module"
    if data.lstrip().startswith(b"HloModule"):
        parsed = _plugin_interface("hlo_module_from_text", purpose)(data.decode("utf-8", "replace"))
        data = parsed.as_serialized_hlo_module_proto()
    code: bytes = _plugin_interface("mlir", purpose).hlo_to_stablehlo(data)
    return code


def module_name(code: bytes) -> str:
    """The name of a module, such as ``jit_step``; ``main`` if it has none."""
    module, _ = _parsed_module(code)
    attributes = module.operation.attributes
    return str(attributes["sym_name"]).strip('"') if "sym_name" in attributes else "main"


def _compiled_module(module: Any, devices: Sequence[Any], compiler_options: dict[str, Any]) -> Any:
    """XLA's executable of an MLIR module, partitioned over ``devices``."""
    import numpy as np

    purpose = "compiling an exported program"
    options = _plugin_interface("get_compile_options", purpose)(
        num_replicas=1,
        num_partitions=len(devices),
        device_assignment=np.array([[device.id for device in devices]]),
        env_options_overrides=compiler_options,
    )
    return devices[0].client.compile(module, _plugin_interface("DeviceList", purpose)(tuple(devices)), options)


def gpu_devices(library: Path, platform: str, config: str, topology: str) -> Sequence[Any]:
    """Compile-only GPU devices.

    ``library``: the plugin's shared object. ``platform``: ``cuda`` or ``rocm``. ``config``: XLA's target config as
    text. ``topology``: ``partitions x hosts x devices``.
    """
    if platform == "rocm":
        from perfscope.plugins.ahead.targets.amd_stand_ins import load_stand_ins

        load_stand_ins(library)
    try:
        return _compile_only_gpus(library, platform, config, topology)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"the {platform} compiler cannot be loaded: {first_line(error)}") from error


def tpu_devices(folder: Path | None, name: str, host: tuple[int, ...] | None = None) -> Sequence[Any]:
    """Compile-only devices of a TPU slice (``v5e:2x4``).

    ``folder``: the folder of libtpu, ``None`` if it is on the path already. ``host``: chips of one host along x, y, z;
    libtpu's default is 2 x 2.
    """
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # this machine has no metadata server, unlike a cloud machine
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no chip is used: several processes may compile at once
    if folder is not None:
        sys.path.append(str(folder))
    from jax.experimental.topologies import get_topology_desc as describe

    kind, _, shape = name.partition(":")
    sides = tuple(int(side) for side in shape.split("x"))
    # the two TensorCores of a v4 are always one device; those of a v5p by default
    together = {"chip_config_name": "megacore"} if kind == "v4" else {}
    try:
        if sides in ((1,), (1, 1), (1, 1, 1)):  # the smallest host has four chips by default
            described = describe(f"{kind}:1x1", "tpu", chips_per_host_bounds=(1, 1, 1), num_slices=1, **together)
        else:
            described = describe(name, "tpu", chips_per_host_bounds=host or (2, 2, 1), **together)
        devices: Sequence[Any] = described.devices
    except Exception as error:
        raise DataError(f"libtpu does not describe {name}: {first_line(error)}") from error
    return devices


class ExportedProgram:
    """A program lowered elsewhere (`export.py`), to be compiled here; same interface as `program.DiscoveredProgram`."""

    calls = 1
    arguments = ()

    def __init__(self, code: bytes, function: str, place: Any, devices: Sequence[Any]) -> None:
        self.name, self.function, self.place = f"jit_{function.removeprefix('jit_')}", function, place
        self._code, self._devices = code, devices

    def lower(self) -> ExportedProgram:
        """Return the program: it is lowered already."""
        return self

    def compile(self, compiler_options: dict[str, Any]) -> ExportedProgram:
        """Compile it with everything that was lowered: names, lines, donation."""
        module, partitions = _parsed_module(self._code)
        if partitions > len(self._devices):
            raise DataError(f"it is divided among {partitions} devices, the target has {len(self._devices)}")
        self._executable = _compiled_module(module, list(self._devices)[:partitions], compiler_options)
        return self

    def runtime_executable(self) -> Any:
        """XLA's executable."""
        return self._executable

    def memory_analysis(self) -> Any:
        """XLA's memory statistics."""
        return self._executable.get_compiled_memory_stats()


def canonical_text(executable: Any) -> str:
    """The text of a compiled program without lines, files and scope names: input of its fingerprint."""
    options = _plugin_interface("HloPrintOptions", "a program's fingerprint")
    modules = executable.runtime_executable().hlo_modules()
    return "\n".join(str(module.to_string(options.short_parsable())) for module in modules)


def strip_source_paths(pattern: str) -> None:
    """Make jax remove matches of ``pattern`` from the names of source files in programs."""
    import jax

    try:
        jax.config.update("jax_hlo_source_file_canonicalization_regex", pattern)
    except (AttributeError, ValueError) as error:
        raise DataError(
            "this jax has no jax_hlo_source_file_canonicalization_regex, which keeps this machine's paths out of it"
        ) from error


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error's message, bounded."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:400]
