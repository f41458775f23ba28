"""Everything of jax that is not public and that running a program without devices needs, each found by looking for it.

Checked on jax 0.10.2. Import it only in a process that runs somebody's program for its shapes: the child.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from perfscope.profiler.errors import DataError

KNOWN = "0.10"
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
        f"{gone[0]}{more}; jax {KNOWN} has"
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

    ours = Path(__file__).parent
    return (*(f"{Path(str(one.__file__)).parent}/" for one in (jax, jaxlib)), f"{ours}/")


def stays_as_it_is(kind: type) -> None:
    """Have jax take values of a class as arguments without turning them into another's."""
    dtypes = importlib.import_module("jax._src.dtypes")
    register = getattr(dtypes, "register_canonicalize_value_handler", None)
    if register is not None:
        register(kind, None)
    else:  # before 0.10.2
        dtypes.canonicalize_value_handlers[kind] = lambda value: value


def leave_out_our_lines() -> None:
    """Have jax pass over our own frames where it keeps from which line an operation comes, as it does over its own."""
    register = get("jax._src.source_info_util", "register_exclusion")
    for file in Path(__file__).parent.glob("jax_*.py"):
        register(str(file))


def setting() -> Callable[[], contextlib.AbstractContextManager[None]]:
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

_here = threading.local()


@functools.cache
def _apart() -> Any:
    """A state that is part of the keys of compiled functions, so that those of either mode never serve the other."""
    return get("jaxlib._jax", "config").Config("perfscope_for_real", False, include_in_jit_key=True)


def is_real() -> bool:
    """Whether this thread computes on the CPU now."""
    return bool(getattr(_here, "depth", 0))


@contextlib.contextmanager
def for_real() -> Iterator[None]:
    """Compute what is called inside, on the CPU, out of every mesh."""
    import jax

    mesh = importlib.import_module("jax._src.mesh")
    implementations = importlib.import_module("jax._src.sharding_impls")
    cpu = jax.local_devices(backend="cpu")[0]
    config = importlib.import_module("jax._src.config")
    _here.depth = getattr(_here, "depth", 0) + 1
    before = _apart().get_local() if hasattr(_apart(), "get_local") else None
    _apart().set_local(True)
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
        _here.depth -= 1
        if _here.depth == 0:
            _apart().set_local(False)
        del before


@functools.cache
def _traced_for() -> Any:
    """A state that is part of the keys of traced functions; None: nobody's."""
    config = get("jaxlib._jax", "config").Config
    return config("perfscope_traced_for", None, include_in_jit_key=True, include_in_trace_context=True)


@contextlib.contextmanager
def traced_apart() -> Iterator[None]:
    """Trace anew what is jitted inside, in this thread; nothing outside finds it, nor was it found before."""
    before = _traced_for().swap_local(object())
    try:
        yield
    finally:
        _traced_for().set_local(before)


# Patches --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replaced(where: Any, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """``where.name`` is ``made(what it was)`` inside."""
    before = getattr(where, name)
    setattr(where, name, made(before))
    try:
        yield
    finally:
        setattr(where, name, before)
