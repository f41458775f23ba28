"""What of jax's private interfaces loading a compiler without its devices needs; each missing one is one clear line.

Checked on jax 0.10.2. Import it only in a process that may load plugins: the child.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfscope.profiler.errors import DataError


def _need(module: str, name: str, purpose: str, before: str | None = None) -> Any:
    """An attribute of a module of jax's own; ``DataError`` that says what it was for.

    ``before``: the module that had it in earlier releases.
    """
    for home in (module, before):
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(home or module), name)
    raise DataError(f"this jax has no {module}.{name}, which {purpose} needs; see `perfscope doctor`")


def gpu_devices(library: Path, platform: str, config: str, topology: str) -> Sequence[Any]:
    """Devices of GPUs that can be compiled for and nothing else.

    ``library``: the plugin's shared object. ``platform``: ``cuda`` or ``rocm``. ``config``: XLA's target config as
    text. ``topology``: ``partitions x hosts x devices``.
    """
    home = "jaxlib.xla_client"
    purpose = "compiling for GPUs that are not there"
    load = _need(home, "load_pjrt_plugin_dynamically", purpose)
    is_up, start = _need(home, "pjrt_plugin_initialized", purpose), _need(home, "initialize_pjrt_plugin", purpose)
    describe = _need(home, "make_c_api_device_topology", purpose)
    if platform == "rocm":
        from perfscope.profiler.aot.rocm_stand_ins import load_missing

        load_missing(library)
    try:
        client = load(platform, str(library))
        if not is_up(platform):
            start(platform)
        found = describe(client, "perfscope", target_config=config, topology=topology)
        make = getattr(found, "_make_compile_only_devices", None)
        if make is None:
            raise DataError(f"this jaxlib's topology has no _make_compile_only_devices, which {purpose} needs")
        devices: Sequence[Any] = make()
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"the {platform} compiler cannot be loaded: {first_line(error)}") from error
    return devices


def tpu_devices(folder: Path | None, name: str, host: tuple[int, ...] | None = None) -> Sequence[Any]:
    """Devices of a TPU slice (``v5e:2x4``) that can be compiled for and nothing else.

    ``folder``: where libtpu lies, ``None`` where it is on the path already. ``host``: chips of one host along x, y, z;
    libtpu's own are 2 x 2.
    """
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # the metadata server of a cloud machine, which this is not
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # no chip is taken: several may compile at once
    if folder is not None:
        sys.path.append(str(folder))
    describe = _need("jax.experimental.topologies", "get_topology_desc", "compiling for TPUs that are not there")
    kind, _, shape = name.partition(":")
    sides = tuple(int(side) for side in shape.split("x"))
    # the two TensorCores of a v4 are one device in every program; v5p's are without being told
    together = {"chip_config_name": "megacore"} if kind == "v4" else {}
    try:
        if sides in ((1,), (1, 1), (1, 1, 1)):  # the smallest host has four chips unless told otherwise
            described = describe(f"{kind}:1x1", "tpu", chips_per_host_bounds=(1, 1, 1), num_slices=1, **together)
        else:
            described = describe(name, "tpu", chips_per_host_bounds=host or (2, 2, 1), **together)
        devices: Sequence[Any] = described.devices
    except Exception as error:
        raise DataError(f"libtpu does not describe {name}: {first_line(error)}") from error
    return devices


def without_our_paths(pattern: str) -> None:
    """Have jax cut what ``pattern`` matches from the names of source files in programs."""
    import jax

    try:
        jax.config.update("jax_hlo_source_file_canonicalization_regex", pattern)
    except (AttributeError, ValueError) as error:
        raise DataError(
            "this jax has no jax_hlo_source_file_canonicalization_regex, which keeps this machine's paths out of it"
        ) from error


def hide_our_frames() -> None:
    """Have jax leave our own frames out of the stacks that it writes into programs, as it does with its own."""
    try:
        from jax._src import source_info_util

        source_info_util.register_exclusion(str(Path(__file__).parent))
    except (ImportError, AttributeError):
        return  # they are at the outer end of a stack: more to read, nothing wrong


class Exported:
    """A program that was lowered elsewhere (`jax_export.py`), to be compiled here; as `jax_seen.SeenProgram`."""

    calls = 1
    arguments = ()

    def __init__(self, code: bytes, function: str, place: Any, devices: Sequence[Any]) -> None:
        self.name, self.function, self.place = f"jit_{function}", function, place
        self._code, self._devices = code, devices

    def lower(self) -> Exported:
        """It is lowered already."""
        return self

    def compile(self, compiler_options: dict[str, Any]) -> Exported:
        """Compile it with all that was lowered: names, lines, donation."""
        purpose = "compiling an exported program"
        ir, context = (
            _need("jax._src.lib.mlir", "ir", purpose),
            _need("jax._src.interpreters.mlir", "make_ir_context", purpose),
        )
        options_of, devices_of = (
            _need("jax._src.compiler", "get_compile_options", purpose),
            _need("jaxlib.xla_client", "DeviceList", purpose),
        )
        import numpy as np

        with context():
            module = ir.Module.parse(self._code)
        partitions = int(ir.IntegerAttr(module.operation.attributes["mhlo.num_partitions"]).value)
        if partitions > len(self._devices):
            raise DataError(f"it is divided among {partitions} devices, the target has {len(self._devices)}")
        devices = list(self._devices)[:partitions]
        options = options_of(
            num_replicas=1,
            num_partitions=partitions,
            device_assignment=np.array([[one.id for one in devices]]),
            env_options_overrides=compiler_options,
        )
        self._executable = devices[0].client.compile(module, devices_of(tuple(devices)), options)
        return self

    def runtime_executable(self) -> Any:
        """XLA's own."""
        return self._executable

    def memory_analysis(self) -> Any:
        """XLA's account of its memory."""
        return self._executable.get_compiled_memory_stats()


def text_of(executable: Any) -> str:
    """A compiled program without lines, files and names of scopes: what its fingerprint is taken of."""
    options = _need("jaxlib._hlo", "HloPrintOptions", "a program's fingerprint", before="jaxlib._jax")
    modules = executable.runtime_executable().hlo_modules()
    return "\n".join(str(module.to_string(options.short_parsable())) for module in modules)


def first_line(error: BaseException) -> str:
    """The first line of what an error says that says something, bounded."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:400]
