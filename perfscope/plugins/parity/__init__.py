"""Parity: a model against itself in another framework, dtype, backend or commit, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.plugins import Plugin, load

if TYPE_CHECKING:
    from perfscope.plugins.parity.child import load_function as load_function
    from perfscope.plugins.parity.errors import FACTOR as FACTOR
    from perfscope.plugins.parity.errors import expected_error as expected_error
    from perfscope.plugins.parity.errors import reduction_length as reduction_length
    from perfscope.plugins.parity.jax_side import JaxSide as JaxSide
    from perfscope.plugins.parity.names import Name as Name
    from perfscope.plugins.parity.names import likeness as likeness
    from perfscope.plugins.parity.names import parse_name as parse_name
    from perfscope.plugins.parity.side import cotangents as cotangents

_HERE = "perfscope.plugins.parity"

PLUGIN = Plugin(
    name="parity",
    commands={"convert": f"{_HERE}.convert_command:convert", "parity": f"{_HERE}.command:parity"},
    names={
        "assert_parity": f"{_HERE}.testing:assert_parity",
        "inputs_like": f"{_HERE}.inputs.strategies:inputs_like",
    },
    tasks=dict.fromkeys(("convert", "parity"), "Compare"),
)

_FOR_OTHERS = {
    "JaxSide": f"{_HERE}.jax_side:JaxSide",
    "cotangents": f"{_HERE}.side:cotangents",
    "load_function": f"{_HERE}.child:load_function",
    **{name: f"{_HERE}.errors:{name}" for name in ("FACTOR", "expected_error", "reduction_length")},
    **{name: f"{_HERE}.names:{name}" for name in ("Name", "likeness", "parse_name")},
}
"""Names that other plug-ins use."""


def __getattr__(name: str) -> Any:
    if name not in _FOR_OTHERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_FOR_OTHERS[name])
