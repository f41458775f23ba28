"""Private interfaces of jax and jaxlib needed to run and compile a program without devices.

``compat.NAME`` is the interface with that name in the tables below; functions cover uses of several interfaces. All
work with jax 0.10.2, the version they were written for, and those of `RUN_INTERFACES` also with 0.12.0; if another
version lacks one, it is reported in one line before a program runs (`check`, `check_checkpoint`). Import this module
only in the child process, which may run programs and load compiler plugins.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from perfscope.model.errors import DataError

KNOWN_VERSION = "0.10"
"""The jax version that this was written for."""

_LINEARIZE_PARAMETERS = ("traceable", "primals_ft")


def _by_name(attributes: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, str]]:
    """Last part of the attribute path -> (module, attribute path)."""
    return {path.rpartition(".")[2]: (module, path) for module, paths in attributes.items() for path in paths}


RUN_INTERFACES = _by_name(
    {
        "jax._src.array": ("Shard", "make_array_from_callback", "make_array_from_single_device_arrays"),
        "jax._src.config": ("debug_infs", "debug_nans", "disable_jit"),
        "jax._src.core": (
            "EvalTrace.process_primitive", "EvalTrace.process_shard_map", "ShapedArray",
            "check_bool_conversion", "check_integer_conversion", "check_scalar_conversion", "eval_jaxpr",
            "jaxprs_in_params", "mem_space_to_kind", "pytype_aval_mappings", "trace_state_clean", "typeof",
            "update_aval_with_sharding",
        ),
        "jax._src.debugging": ("debug_callback_p", "debug_print_p"),
        "jax._src.dispatch": ("_batched_device_put_impl", "get_intermediate_shardings", "update_dp_aval"),
        "jax._src.dtypes": ("canonicalize_value", "canonicalize_value_handlers"),
        "jax._src.effects": ("ordered_effects",),
        "jax._src.interpreters.mlir": (
            "LoweringParameters", "LoweringRuleEntry", "_platform_specific_lowerings", "get_constant_handler",
            "register_constant_handler",
        ),
        "jax._src.interpreters.partial_eval": ("dce_jaxpr", "partial_eval_jaxpr_nounits"),
        "jax._src.interpreters.pxla": ("_get_and_check_device_assignment", "batched_device_put", "get_default_device"),
        "jax._src.lax.lax": ("full",),
        "jax._src.mesh": (
            "empty_abstract_mesh", "empty_concrete_mesh", "get_abstract_mesh", "get_concrete_mesh",
            "use_abstract_mesh",
        ),
        "jax._src.numpy.array_methods": ("_set_array_base_attributes",),
        "jax._src.numpy.indexing": ("rewriting_take",),
        "jax._src.pjit": (
            "MetaTy", "_pjit_call_impl_python", "_resolve_and_lower", "_resolve_in_shardings", "convert_to_metaty",
        ),
        "jax._src.sharding_impls": ("GSPMDSharding", "UNSPECIFIED", "_internal_use_concrete_mesh"),
        "jax._src.source_info_util": ("current", "register_exclusion", "user_context"),
        "jax._src.stages": ("Lowered", "MismatchType", "Traced.lower", "make_args_info"),
        "jax._src.tree_util": ("tracing_registry",),
        "jax._src.xla_bridge": ("canonicalize_platform", "get_backend", "local_devices"),
        "jaxlib._jax": ("config.Config",),
    }
)  # fmt: skip
"""Interfaces needed to run a program without devices: name -> (module, attribute path) in jax 0.10.2."""

CHECKPOINT_INTERFACES = _by_name(
    {
        "jax._src.ad_checkpoint": ("remat_p",),
        "jax._src.api_util": ("debug_info",),
        "jax._src.core": (
            "DropVar", "Jaxpr", "Literal", "Var", "eqn_effects", "join_effects", "new_jaxpr_eqn",
        ),
        "jax._src.custom_derivatives": ("_flatten_bwd", "_flatten_fwd", "_flatten_jvp"),
        "jax._src.effects": ("remat_allowed_effects",),
        "jax._src.interpreters.ad": ("linearize",),
        "jax._src.interpreters.partial_eval": ("convert_constvars_jaxpr", "trace_to_jaxpr"),
        "jax._src.lax.control_flow.loops": ("scan_p",),
        "jax._src.pjit": ("jit_p",),
        "jax._src.source_info_util": ("is_user_filename", "raw_frame_to_frame", "user_frames"),
        "jax._src.tree_util": ("FlatTree",),
    }
)  # fmt: skip
"""Interfaces needed by ``--checkpoint`` besides `RUN_INTERFACES`."""

_INTERFACES = RUN_INTERFACES | CHECKPOINT_INTERFACES


def check() -> None:
    """Raise ``DataError`` with one line if this jax lacks an interface for running a program."""
    gone = missing(RUN_INTERFACES)
    if gone:
        import jax

        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise DataError(
            f"this jax ({jax.__version__}) is not one that `perfscope compile` can run a program on: it has no "
            f"{gone[0]}{more}; jax {KNOWN_VERSION} has"
        )


def check_checkpoint() -> None:
    """Raise ``DataError`` with one line if this jax lacks an interface for ``--checkpoint``."""
    gone = missing(CHECKPOINT_INTERFACES)
    if not gone and tuple(inspect.signature(_private("linearize")).parameters)[:2] != _LINEARIZE_PARAMETERS:
        gone = [".".join(CHECKPOINT_INTERFACES["linearize"])]
    if gone:
        import jax

        raise DataError(
            f"this jax ({jax.__version__}) is not one that --checkpoint can be used with: it has no {gone[0]} as "
            "jax 0.10.2 has it"
        )


def missing(interfaces: Mapping[str, tuple[str, str]]) -> list[str]:
    """The interfaces of a table that this jax lacks: ``module.attribute``."""
    return [f"{module}.{path}" for module, path in interfaces.values() if _holder(module, path) is None]


def _holder(module: str, path: str) -> tuple[Any, str] | None:
    """The object that has the last attribute of a path, and that attribute's name."""
    *outer, name = path.split(".")
    try:
        holder: Any = importlib.import_module(module)
        for attribute in outer:
            holder = getattr(holder, attribute)
    except (ImportError, AttributeError):
        return None
    return (holder, name) if hasattr(holder, name) else None


def _known_holder(name: str) -> tuple[Any, str]:
    holder = _holder(*_INTERFACES[name])
    if holder is None:
        raise DataError(f"this jax has no {'.'.join(_INTERFACES[name])}; see `perfscope doctor`")
    return holder


def __getattr__(name: str) -> Any:
    """An interface of the tables, cached; temporarily replaced ones (`patched_interface`) are not read this way."""
    if name not in _INTERFACES:
        raise AttributeError(name)
    value = globals()[name] = _private(name)
    return value


def _private(name: str) -> Any:
    """The current value of an interface of the tables."""
    return getattr(*_known_holder(name))


@contextlib.contextmanager
def patched(holder: Any, name: str, replacement: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, ``holder.name`` is ``replacement(original)``."""
    before = getattr(holder, name)
    setattr(holder, name, replacement(before))
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextlib.contextmanager
def patched_interface(name: str, replacement: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, a private interface of the tables is ``replacement(original)``."""
    with patched(*_known_holder(name), replacement):
        yield


@functools.cache
def package_folders() -> tuple[str, ...]:
    """Folders of jax, jaxlib and our code that runs a program, each with a trailing slash."""
    import jax
    import jaxlib

    ours = Path(__file__).parents[1]
    return (*(f"{Path(str(package.__file__)).parent}/" for package in (jax, jaxlib)), f"{ours}/")


# Arrays and their types -----------------------------------------------------------------------------------------


def register_array_type(kind: type, constant: Callable[[Any, Any], Any], keep: Iterable[str]) -> None:
    """Make jax accept ``kind`` as arguments and constants, and give it jax's array methods except ``keep``."""
    _private("_set_array_base_attributes")(kind, exclude=set(keep))
    _private("pytype_aval_mappings")[kind] = lambda array: array.aval
    dtypes = importlib.import_module("jax._src.dtypes")
    register = getattr(dtypes, "register_canonicalize_value_handler", None)
    if register is not None:
        register(kind, None)
    else:  # before 0.10.2
        _private("canonicalize_value_handlers")[kind] = lambda value: value
    _private("register_constant_handler")(kind, constant)


# Calls of compiled functions ------------------------------------------------------------------------------------


def device_assignment(
    arguments: Iterable[Any], results: Iterable[Any], jaxpr: Any, mesh: Any
) -> tuple[list[Any], Sequence[Any] | None]:
    """All shardings of a call, including those inside its jaxpr, and the devices that it runs on."""
    kinds = _private("MismatchType")
    shardings = [
        *((sharding, kinds.ARG_SHARDING, None) for sharding in arguments),
        *((sharding, kinds.OUT_SHARDING, None) for sharding in results),
        *(
            (sharding, kinds.SHARDING_INSIDE_COMPUTATION, source)
            for sharding, source in _private("get_intermediate_shardings")(jaxpr)
        ),
    ]
    _, devices, _ = _private("_get_and_check_device_assignment")(shardings, mesh)
    return [sharding for sharding, _, _ in shardings], devices


def traced_call(traced: Any) -> tuple[Sequence[Any], dict[str, Any], Sequence[Any]]:
    """For a ``jax.stages.Traced``: constants, parameters and types of the arguments, constants first."""
    low = traced.lojax
    return low._consts, low._params, low._meta_tys_flat


def lower_call(params: dict[str, Any], types: Sequence[Any]) -> Any:
    """The lowering of a call for the platform of its devices."""
    return _private("_resolve_and_lower")(
        types,
        **params,
        lowering_platforms=None,
        lowering_parameters=_private("LoweringParameters")(),
        pgle_profiler=None,
    )


def lowered_stage(computation: Any, params: dict[str, Any]) -> Any:
    """``jax.stages.Lowered`` of a lowering, with flat arguments and results."""
    from jax import tree_util

    closed = params["jaxpr"]
    arguments = tree_util.tree_structure((tuple(range(len(closed.in_avals))), {}))
    donated = tuple(number for number, is_donated in enumerate(params["donated_invars"]) if is_donated)
    info = _private("make_args_info")(arguments, closed.in_avals, donated)
    return _private("Lowered")(computation, info, tree_util.tree_structure(tuple(range(len(closed.out_avals)))))


@contextlib.contextmanager
def debug_callbacks_lowered_by(rule: Callable[..., Any], platforms: Iterable[str]) -> Iterator[None]:
    """Inside, ``rule`` lowers ``jax.debug.print`` and ``jax.debug.callback`` for these platforms."""
    rules, entry = _private("_platform_specific_lowerings"), _private("LoweringRuleEntry")(rule, True)
    primitives = (_private("debug_callback_p"), _private("debug_print_p"))
    before = {platform: dict(rules[platform]) for platform in platforms}
    for platform in before:
        rules[platform].update(dict.fromkeys(primitives, entry))
    try:
        yield
    finally:
        for platform, original in before.items():
            for primitive in primitives:
                del rules[platform][primitive]
                if primitive in original:
                    rules[platform][primitive] = original[primitive]


def exclude_own_frames() -> None:
    """Make jax omit our frames from source lines and stacks in programs, if it can."""
    with contextlib.suppress(DataError):  # they are the outermost frames of a stack: harmless, just more to read
        _private("register_exclusion")(f"{Path(__file__).parents[1]}/")


def lowering_context() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context that restores the current stack, meshes and default device, on which a lowering depends."""
    import jax

    stack = _private("current")().traceback
    device = jax.config.jax_default_device
    abstract, concrete = _private("get_abstract_mesh")(), _private("get_concrete_mesh")()

    @contextlib.contextmanager
    def restored() -> Iterator[None]:
        with (
            _private("user_context")(stack),
            jax.default_device(device),
            _private("use_abstract_mesh")(abstract),
            _private("_internal_use_concrete_mesh")(concrete),
        ):
            yield

    return restored


# Computing on the CPU -------------------------------------------------------------------------------------------

_thread_state = threading.local()


@functools.cache
def _real_mode_key() -> Any:
    """A setting in the cache keys of compiled functions, so that the two modes do not share entries."""
    return _private("Config")("perfscope_for_real", False, include_in_jit_key=True)


def is_computing() -> bool:
    """Whether this thread is computing on the CPU."""
    return bool(getattr(_thread_state, "depth", 0))


@contextlib.contextmanager
def computing_on_cpu() -> Iterator[None]:
    """Inside, calls are computed on the CPU, outside of every mesh."""
    import jax

    cpu = jax.local_devices(backend="cpu")[0]
    _thread_state.depth = getattr(_thread_state, "depth", 0) + 1
    _real_mode_key().set_local(True)
    try:
        with (
            jax.default_device(cpu),
            _private("use_abstract_mesh")(_private("empty_abstract_mesh")),
            _private("_internal_use_concrete_mesh")(_private("empty_concrete_mesh")),
            _private("debug_nans")(False),
            _private("debug_infs")(False),
            _private("disable_jit")(False),
        ):
            yield
    finally:
        _thread_state.depth -= 1
        if _thread_state.depth == 0:
            _real_mode_key().set_local(False)


@functools.cache
def _trace_key() -> Any:
    """A setting in the cache keys of traced functions; ``None``: outside of `separate_trace_cache`."""
    return _private("Config")("perfscope_traced_for", None, include_in_jit_key=True, include_in_trace_context=True)


@contextlib.contextmanager
def separate_trace_cache() -> Iterator[None]:
    """Inside, this thread traces jitted functions again, and shares no trace with the outside."""
    before = _trace_key().swap_local(object())
    try:
        yield
    finally:
        _trace_key().set_local(before)


# Jaxprs ---------------------------------------------------------------------------------------------------------


def new_jaxpr(inputs: Sequence[Any], outputs: Sequence[Any], eqns: Sequence[Any], debug_info: Any) -> Any:
    """A jaxpr without constants; its effects are those of its equations."""
    effects = _private("join_effects")(*(eqn.effects for eqn in eqns))
    return _private("Jaxpr")(
        constvars=(), invars=inputs, outvars=outputs, eqns=eqns, effects=effects, debug_info=debug_info
    )


def new_equation(primitive: Any, inputs: list[Any], outputs: list[Any], params: dict[str, Any], origin: Any) -> Any:
    """An equation with the effects of ``params["jaxpr"]``, and with the source line and context of ``origin``."""
    effects = _private("eqn_effects")(params["jaxpr"], inputs)
    return _private("new_jaxpr_eqn")(inputs, outputs, primitive, params, effects, origin.source_info, origin.ctx)


def flat_arguments(arguments: tuple[Any, ...]) -> Any:
    """Positional arguments with their tree, as jax traces them."""
    return _private("FlatTree").flatten((arguments, {}))


def traced_for_linearize(function: Callable[..., Any], source: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """``function`` as a closed jaxpr for these arguments, with the debug info of ``source``."""
    info = _private("debug_info")("linearize", source, arguments, {})
    closed, _ = _private("trace_to_jaxpr")(function, flat_arguments(arguments).map(_private("typeof")), info)
    return closed


def is_derivative_rule(code: CodeType) -> bool:
    """Whether a function is the one in jax that calls the rules given to ``defvjp`` and ``defjvp``."""
    names = ("_flatten_bwd", "_flatten_fwd", "_flatten_jvp")
    return code.co_name in names and code.co_filename.endswith("custom_derivatives.py")
