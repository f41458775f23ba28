"""Everything of jax that is not public and that running a program without devices needs, each found by looking for it.

Checked on jax 0.10.2. Import it only in a process that runs somebody's program for its shapes: the child.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from perfscope.model.errors import DataError

KNOWN_VERSION = "0.10"
"""The jax that this was written for."""

NEEDED = (
    ("jax._src.api", "jit"),
    ("jax._src.array", "make_array_from_callback"),
    ("jax._src.array", "make_array_from_process_local_data"),
    ("jax._src.array", "make_array_from_single_device_arrays"),
    ("jax._src.core", "EvalTrace"),
    ("jax._src.core", "ShapedArray"),
    ("jax._src.core", "abstract_token"),
    ("jax._src.core", "jaxprs_in_params"),
    ("jax._src.core", "physical_aval"),
    ("jax._src.core", "pytype_aval_mappings"),
    ("jax._src.core", "typeof"),
    ("jax._src.debugging", "debug_callback_p"),
    ("jax._src.debugging", "debug_print_p"),
    ("jax._src.dispatch", "_batched_device_put_impl"),
    ("jax._src.dispatch", "device_put_p"),
    ("jax._src.dispatch", "get_intermediate_shardings"),
    ("jax._src.dispatch", "update_dp_aval"),
    ("jax._src.effects", "ordered_effects"),
    ("jax._src.dtypes", "canonicalize_value_handlers"),
    ("jax._src.interpreters.mlir", "LoweringParameters"),
    ("jax._src.interpreters.mlir", "LoweringRuleEntry"),
    ("jax._src.interpreters.mlir", "_platform_specific_lowerings"),
    ("jax._src.interpreters.mlir", "get_constant_handler"),
    ("jax._src.interpreters.mlir", "register_constant_handler"),
    ("jax._src.interpreters.partial_eval", "dce_jaxpr"),
    ("jax._src.interpreters.partial_eval", "partial_eval_jaxpr_nounits"),
    ("jax._src.interpreters.pxla", "_get_and_check_device_assignment"),
    ("jax._src.interpreters.pxla", "get_default_device"),
    ("jax._src.lax.lax", "full"),
    ("jax._src.mesh", "empty_abstract_mesh"),
    ("jax._src.mesh", "empty_concrete_mesh"),
    ("jax._src.numpy.array_methods", "_set_array_base_attributes"),
    ("jax._src.pjit", "MetaTy"),
    ("jax._src.pjit", "_pjit_call_impl_python"),
    ("jax._src.pjit", "_resolve_and_lower"),
    ("jax._src.pjit", "_resolve_in_shardings"),
    ("jax._src.pjit", "jit_p"),
    ("jax._src.sharding_impls", "UNSPECIFIED"),
    ("jax._src.source_info_util", "register_exclusion"),
    ("jax._src.stages", "Lowered"),
    ("jax._src.xla_bridge", "get_backend"),
    ("jaxlib._jax", "config"),
)
"""What is used, each where jax 0.10 has it."""


def check() -> None:
    """Raise ``DataError`` with one line where this jax is not one that we know."""
    gone = missing(NEEDED)
    if not gone:
        return
    import jax

    more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
    raise DataError(
        f"this jax ({jax.__version__}) is not one that `perfscope compile` can run a program on: it has no "
        f"{gone[0]}{more}; jax {KNOWN_VERSION} has"
    )


def missing(needed: Sequence[tuple[str, str]]) -> list[str]:
    """Those of (module, name) that this jax does not have."""
    return [f"{module}.{name}" for module, name in needed if _find(module, name) is None]


def _find(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


@functools.cache
def get(module: str, name: str) -> Any:
    """An attribute of a module of jax's own that nobody replaces; kept, as it is asked for at every operation."""
    return getattr(importlib.import_module(module), name)


@functools.cache
def package_folders() -> tuple[str, ...]:
    """Folders of jax, jaxlib and what of ours runs a program, with a slash behind them."""
    import jax
    import jaxlib

    ours = Path(__file__).parents[1]
    return (*(f"{Path(str(one.__file__)).parent}/" for one in (jax, jaxlib)), f"{ours}/")


def register_canonical_type(kind: type) -> None:
    """Have jax take values of a class as arguments without turning them into another's."""
    dtypes = importlib.import_module("jax._src.dtypes")
    register = getattr(dtypes, "register_canonicalize_value_handler", None)
    if register is not None:
        register(kind, None)
    else:  # before 0.10.2
        dtypes.canonicalize_value_handlers[kind] = lambda value: value


def exclude_own_frames() -> None:
    """Have jax pass over our own frames where it keeps from which line an operation comes, as it does over its own."""
    register = get("jax._src.source_info_util", "register_exclusion")
    for file in Path(__file__).parent.rglob("*.py"):
        register(str(file))


def lowering_context() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """What of the place and time of a call a lowering depends on: its stack, meshes and device; to be set again."""
    import jax

    lines, meshes = importlib.import_module("jax._src.source_info_util"), importlib.import_module("jax._src.mesh")
    implementations = importlib.import_module("jax._src.sharding_impls")
    stack = lines.current().traceback
    device = jax.config.jax_default_device
    abstract, concrete = meshes.get_abstract_mesh(), meshes.get_concrete_mesh()

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        with (
            lines.user_context(stack),
            jax.default_device(device),
            meshes.use_abstract_mesh(abstract),
            implementations._internal_use_concrete_mesh(concrete),
        ):
            yield

    return again


# For real -------------------------------------------------------------------------------------------------------

_thread_state = threading.local()


@functools.cache
def _real_mode_key() -> Any:
    """A state that is part of the keys of compiled functions, so that those of either mode never serve the other."""
    return get("jaxlib._jax", "config").Config("perfscope_for_real", False, include_in_jit_key=True)


def is_computing() -> bool:
    """Whether this thread computes on the CPU now."""
    return bool(getattr(_thread_state, "depth", 0))


@contextlib.contextmanager
def computing_on_cpu() -> Iterator[None]:
    """Compute what is called inside, on the CPU, out of every mesh."""
    import jax

    mesh = importlib.import_module("jax._src.mesh")
    implementations = importlib.import_module("jax._src.sharding_impls")
    cpu = jax.local_devices(backend="cpu")[0]
    config = importlib.import_module("jax._src.config")
    _thread_state.depth = getattr(_thread_state, "depth", 0) + 1
    before = _real_mode_key().get_local() if hasattr(_real_mode_key(), "get_local") else None
    _real_mode_key().set_local(True)
    try:
        with (
            jax.default_device(cpu),
            mesh.use_abstract_mesh(mesh.empty_abstract_mesh),
            implementations._internal_use_concrete_mesh(mesh.empty_concrete_mesh),
            config.debug_nans(False),
            config.debug_infs(False),
            config.disable_jit(False),
        ):
            yield
    finally:
        _thread_state.depth -= 1
        if _thread_state.depth == 0:
            _real_mode_key().set_local(False)
        del before


@functools.cache
def _trace_key() -> Any:
    """A state that is part of the keys of traced functions; None: nobody's."""
    config = get("jaxlib._jax", "config").Config
    return config("perfscope_traced_for", None, include_in_jit_key=True, include_in_trace_context=True)


@contextlib.contextmanager
def separate_trace_cache() -> Iterator[None]:
    """Trace anew what is jitted inside, in this thread; nothing outside finds it, nor was it found before."""
    before = _trace_key().swap_local(object())
    try:
        yield
    finally:
        _trace_key().set_local(before)


# Patches --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def patched(where: Any, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """``where.name`` is ``made(what it was)`` inside."""
    before = getattr(where, name)
    setattr(where, name, made(before))
    try:
        yield
    finally:
        setattr(where, name, before)


# What of jax's private interfaces loading a compiler without its devices needs; each missing one is one clear line.
#
# Checked on jax 0.10.2. Import it only in a process that may load plugins: the child.


def _required_attribute(module: str, name: str, purpose: str, before: str | None = None) -> Any:
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
    load = _required_attribute(home, "load_pjrt_plugin_dynamically", purpose)
    is_up, start = (
        _required_attribute(home, "pjrt_plugin_initialized", purpose),
        _required_attribute(home, "initialize_pjrt_plugin", purpose),
    )
    describe = _required_attribute(home, "make_c_api_device_topology", purpose)
    if platform == "rocm":
        from perfscope.profiler.ahead.targets.amd_stand_ins import load_stand_ins

        load_stand_ins(library)
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
    describe = _required_attribute(
        "jax.experimental.topologies", "get_topology_desc", "compiling for TPUs that are not there"
    )
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


def strip_source_paths(pattern: str) -> None:
    """Have jax cut what ``pattern`` matches from the names of source files in programs."""
    import jax

    try:
        jax.config.update("jax_hlo_source_file_canonicalization_regex", pattern)
    except (AttributeError, ValueError) as error:
        raise DataError(
            "this jax has no jax_hlo_source_file_canonicalization_regex, which keeps this machine's paths out of it"
        ) from error


def exclude_own_folder() -> None:
    """Have jax leave our own frames out of the stacks that it writes into programs, as it does with its own."""
    try:
        from jax._src import source_info_util

        source_info_util.register_exclusion(str(Path(__file__).parents[1]))
    except (ImportError, AttributeError):
        return  # they are at the outer end of a stack: more to read, nothing wrong


class ExportedProgram:
    """A program that was lowered elsewhere (`jax_export.py`), to be compiled here; as `jax_seen.SeenProgram`."""

    calls = 1
    arguments = ()

    def __init__(self, code: bytes, function: str, place: Any, devices: Sequence[Any]) -> None:
        self.name, self.function, self.place = f"jit_{function}", function, place
        self._code, self._devices = code, devices

    def lower(self) -> ExportedProgram:
        """It is lowered already."""
        return self

    def compile(self, compiler_options: dict[str, Any]) -> ExportedProgram:
        """Compile it with all that was lowered: names, lines, donation."""
        purpose = "compiling an exported program"
        ir, context = (
            _required_attribute("jax._src.lib.mlir", "ir", purpose),
            _required_attribute("jax._src.interpreters.mlir", "make_ir_context", purpose),
        )
        options_of, devices_of = (
            _required_attribute("jax._src.compiler", "get_compile_options", purpose),
            _required_attribute("jaxlib.xla_client", "DeviceList", purpose),
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


def canonical_text(executable: Any) -> str:
    """A compiled program without lines, files and names of scopes: what its fingerprint is taken of."""
    options = _required_attribute("jaxlib._hlo", "HloPrintOptions", "a program's fingerprint", before="jaxlib._jax")
    modules = executable.runtime_executable().hlo_modules()
    return "\n".join(str(module.to_string(options.short_parsable())) for module in modules)


def first_line(error: BaseException) -> str:
    """The first line of what an error says that says something, bounded."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:400]
