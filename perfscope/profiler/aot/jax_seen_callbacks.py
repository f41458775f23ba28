"""Prints out of compiled functions: a compiler without its device has no way back to the host, so they are left out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from perfscope.profiler.aot import jax_abstract_compat as compat

PLATFORMS = ("cuda", "rocm", "tpu")
EFFECTS = frozenset(("Debug", "OrderedDebug"))
"""What jax calls the effects of ``jax.debug.print`` and ``jax.debug.callback``."""


def prints(closed: Any) -> bool:
    """Whether a compiled function calls ``jax.debug.print`` or ``jax.debug.callback``."""
    return any(str(one) in EFFECTS for one in closed.jaxpr.effects)


def compiles_only(devices: Sequence[Any]) -> bool:
    """Whether nothing can run on these devices."""
    return str(devices[0].client.runtime_type).startswith("compile_only")


@contextlib.contextmanager
def left_out(devices: Sequence[Any]) -> Iterator[None]:
    """Inside, they become nothing in programs for devices that nothing runs on."""
    debugging = sys.modules["jax._src.debugging"]
    mlir = sys.modules["jax._src.interpreters.mlir"]
    if not compiles_only(devices):
        yield
        return
    rules, entry = mlir._platform_specific_lowerings, mlir.LoweringRuleEntry(_nothing, True)
    primitives = (debugging.debug_callback_p, debugging.debug_print_p)
    before = {name: dict(rules[name]) for name in PLATFORMS}
    for name in PLATFORMS:
        rules[name].update(dict.fromkeys(primitives, entry))
    try:
        yield
    finally:
        for name in PLATFORMS:
            for one in primitives:
                del rules[name][one]
                if one in before[name]:
                    rules[name][one] = before[name][one]


def _nothing(context: Any, *_: Any, effect: Any = None, **__: Any) -> list[Any]:
    """The lowering of a print: nothing, in its order."""
    if compat.get("jax._src.effects", "ordered_effects").contains(effect):
        context.set_tokens_out(context.tokens_in)
    return []
