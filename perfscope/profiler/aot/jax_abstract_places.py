"""On which devices results lie that nobody computed, as far as it can be said before a program is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from perfscope.profiler.aot import jax_abstract_compat as compat


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where the results of a call lie."""

    shardings: tuple[Any, ...]
    committed: bool
    guessed: tuple[bool, ...]
    """Which of them the compiler decides, and were guessed here."""


def metaty(value: Any) -> Any:
    """What jax keeps of an argument of a compiled function."""
    core, pjit = "jax._src.core", "jax._src.pjit"
    aval = compat.get(core, "typeof")(value)
    return compat.get(pjit, "MetaTy")(
        aval,
        getattr(value, "sharding", None),
        None,  # the default layout, as arrays have it that no program asked otherwise for
        bool(getattr(value, "_committed", True)),
        isinstance(value, np.ndarray),
    )


def results_at(params: dict[str, Any], types: Sequence[Any]) -> Placed:
    """Where the results of a compiled function lie."""
    unspecified = compat.get("jax._src.sharding_impls", "UNSPECIFIED")
    closed = params["jaxpr"]
    taken = compat.get("jax._src.pjit", "_resolve_in_shardings")(types, params["in_shardings"])
    inside = compat.get("jax._src.dispatch", "get_intermediate_shardings")(closed.jaxpr)
    kinds = compat.get("jax._src.stages", "MismatchType")
    said = [
        *((one, kinds.ARG_SHARDING, None) for one in taken),
        *((one, kinds.OUT_SHARDING, None) for one in params["out_shardings"]),
        *((one, kinds.SHARDING_INSIDE_COMPUTATION, where) for one, where in inside),
    ]
    _, devices, _ = compat.get("jax._src.interpreters.pxla", "_get_and_check_device_assignment")(
        said, params["ctx_mesh"]
    )
    mesh = _mesh_of(params["ctx_mesh"], [one for one, _, _ in said])
    committed = len(devices or ()) > 1 or mesh is not None or any(one is not unspecified for one, _, _ in said)
    gone = params["donated_invars"]
    given = [
        (type_.aval, where)
        for chosen in (True, False)
        for type_, where, one in zip(types, taken, gone, strict=True)
        if one is chosen and where is not unspecified
    ]
    shardings, guessed = [], []
    for aval, asked in zip(closed.out_avals, params["out_shardings"], strict=True):
        where, sure = _result_at(aval, asked, devices, mesh, given, unspecified)
        shardings.append(where)
        guessed.append(not sure)
    return Placed(shardings=tuple(shardings), committed=committed, guessed=tuple(guessed))


def _result_at(
    aval: Any, asked: Any, devices: Any, mesh: Any, given: list[tuple[Any, Any]], unspecified: Any
) -> tuple[Any, bool]:
    """Where one result lies, and whether that is sure. Of ``given``, arguments and their places, one is used up."""
    if asked is not unspecified:
        return asked, True
    if devices is not None and len(devices) == 1:
        return SingleDeviceSharding(devices[0]), True
    own = getattr(aval, "sharding", None)
    if mesh is not None and own is not None and not own.mesh.empty and own.mesh.are_all_axes_explicit:
        return NamedSharding(mesh, own.spec), True
    number = not getattr(aval, "shape", ())
    for at, (one, where) in enumerate(given):  # a new state lies like the old one
        if not number and one.shape == aval.shape and one.dtype == aval.dtype:
            del given[at]
            return where, False
    if mesh is not None:
        return NamedSharding(mesh, PartitionSpec()), number
    return compat.get("jax._src.sharding_impls", "GSPMDSharding").get_replicated(devices), number


def _mesh_of(context: Any, shardings: Sequence[Any]) -> Any:
    """The mesh of a program: the first that a sharding names, or that of its context; ``None`` without one."""
    from jax.sharding import Mesh

    for one in shardings:
        if isinstance(one, NamedSharding) and isinstance(one.mesh, Mesh):
            return one.mesh
    return context if isinstance(context, Mesh) and not context.empty else None


def sharding_of_operation(
    primitive: Any, arguments: Sequence[Any], params: dict[str, Any], avals: Sequence[Any]
) -> tuple[list[Any], bool]:
    """Where the results of an operation outside of jit lie, and whether the program said so."""
    given = [one for one in arguments if hasattr(one, "_committed")]
    placed = [one for one in given if one._committed]
    if "sharding" in params and isinstance(params["sharding"], NamedSharding):
        from jax.sharding import Mesh

        if isinstance(params["sharding"].mesh, Mesh):
            return [params["sharding"]] * len(avals), True
    if not placed:
        default = compat.get("jax._src.interpreters.pxla", "get_default_device")()
        first = next((one.sharding for one in given), None) or SingleDeviceSharding(default)
        return [first] * len(avals), False
    whole = next((one.sharding for one in placed if len(one.sharding.device_set) > 1), None)
    if whole is None:
        return [placed[0].sharding] * len(avals), True
    mesh = getattr(whole, "mesh", None)
    found = []
    for aval in avals:
        own = getattr(aval, "sharding", None)
        same = next((one.sharding for one in placed if one.shape == getattr(aval, "shape", None)), None)
        if mesh is not None and own is not None and not own.mesh.empty and own.mesh.are_all_axes_explicit:
            found.append(NamedSharding(mesh, own.spec))
        elif same is not None:
            found.append(same)
        else:
            found.append(NamedSharding(mesh, PartitionSpec()) if mesh is not None else whole)
    return found, True
