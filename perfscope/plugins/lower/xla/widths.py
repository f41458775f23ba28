"""Why values are in a wide dtype: the conversion or the argument that made them so, in the program as written.

Only the program before optimization shows it, because backends without 16-bit arithmetic convert everything again.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque

from msgspec import Struct

from perfscope.analyzers.hlo import ITEM_BITS, Computation, HloModule, Instruction, primitive
from perfscope.plugins.lower.program import code_at, place_of
from perfscope.plugins.lower.xla.lines import PLUMBING, Written

FLOATS = ("f64", "f32", "bf16", "f16")
_ASKED = {
    dtype: re.compile(rf"astype|convert_element_type|preferred_element_type|upcast|\b(?:{names})\b")
    for dtype, names in (("f32", "float32|f32"), ("f64", "float64|f64|double"))
}
"""Dtype -> words in a line of code that name it."""
_MOST_STEPS = 500
"""Most values that are followed from one: its dtype comes from close by."""
_ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "select", "compare"})


class Widened(Struct, frozen=True, kw_only=True):
    """A conversion to a wider dtype in the program before optimization."""

    instruction: Instruction
    before: str
    reason: str


class Widths:
    """The callers of each computation, and where the dtype of a value comes from."""

    def __init__(self, module: HloModule) -> None:
        self.module = module
        self._written = Written(module)
        self._callers: dict[str, list[tuple[Computation, Instruction]]] = defaultdict(list)
        self._readers: dict[str, dict[str, list[Instruction]]] = {}
        for computation, instruction in module.instructions():
            for called in instruction.called:
                self._callers[called].append((computation, instruction))

    def widened(self) -> list[tuple[Computation, Widened]]:
        """Conversions of floats to a wider dtype, with the reason."""
        found = []
        for computation, item in self.module.instructions():
            if item.opcode != "convert" or not item.operands:
                continue
            before = computation.by_name[item.operands[0]].shape.dtype
            if before in FLOATS and item.shape.dtype in FLOATS and ITEM_BITS[before] < ITEM_BITS[item.shape.dtype]:
                reason = self._reason(computation, item)
                found.append((computation, Widened(instruction=item, before=before, reason=reason)))
        return found

    def origin(self, computation: Computation, instruction: Instruction) -> Instruction | None:
        """The nearest conversion to a wider dtype, else the argument, that a value has its dtype from, or ``None``."""
        dtype = instruction.shape.dtype
        seen: set[tuple[str, str]] = set()
        queue = deque([(computation, instruction)])
        own = self._written.phase(computation.name, instruction)
        argument = None
        while queue and len(seen) < _MOST_STEPS:
            holder, item = queue.popleft()
            if (holder.name, item.name) in seen:
                continue
            seen.add((holder.name, item.name))
            if own == "forward" and self._written.phase(holder.name, item) == "backward":
                continue  # the optimizer reads gradients
            if item.opcode == "convert" and item.operands:
                if ITEM_BITS.get(holder.by_name[item.operands[0]].shape.dtype, 0) < ITEM_BITS.get(dtype, 0):
                    return item
            elif item.parameter_number is not None:
                if holder.name == self.module.entry:
                    argument = argument or item
                queue += self._outer(holder, item)
            else:
                operands = [holder.by_name[name] for name in item.operands]
                queue += [
                    (holder, value) for value in operands
                    if value.shape.dtype in (dtype, "tuple") and value.opcode != "constant"
                ]  # fmt: skip
        return argument

    def _outer(self, holder: Computation, parameter: Instruction) -> list[tuple[Computation, Instruction]]:
        found = []
        for caller_holder, caller in self._callers.get(holder.name, ()):
            index = 0 if caller.opcode == "while" else parameter.parameter_number or 0
            if index < len(caller.operands):
                found.append((caller_holder, caller_holder.by_name[caller.operands[index]]))
        return found

    def reach(self) -> dict[str, dict[str, None]]:
        """By line of a conversion to a wider dtype, the other lines whose arithmetic is wide because of it."""
        found: dict[str, dict[str, None]] = defaultdict(dict)
        for computation, item in self.module.instructions():
            if item.opcode in PLUMBING or item.shape.dtype not in FLOATS or item.opcode == "convert":
                continue
            origin = self.origin(computation, item)
            here = place_of(item.file, item.line)
            if origin is not None and origin.opcode == "convert" and here:
                where = place_of(origin.file, origin.line)
                if where and where != here:
                    found[where][here] = None
        return found

    def _reason(self, computation: Computation, item: Instruction) -> str:
        code = code_at(place_of(item.file, item.line))
        dtype = item.shape.dtype
        if self._written.phase(computation.name, item) == "backward":
            return "the gradient of a conversion at this line"
        readers = self._users(computation, item.name)
        asked = primitive(item.op_name) == "convert_element_type"
        if asked and code and dtype in _ASKED and _ASKED[dtype].search(code):
            return "written at this line"
        if not asked and any(reader.opcode in ("dot", "convolution") for reader in readers):
            return f"product of mixed dtypes: the other operand is {dtype}"
        others = [
            computation.by_name[name] for reader in readers if reader.opcode in _ARITHMETIC for name in reader.operands
            if name != item.name and computation.by_name[name].shape.dtype == dtype
        ]  # fmt: skip
        for other in others:
            made = self._named(computation, other)
            if made:
                return f"promoted: {made} is {dtype}"
        if any(reader.opcode in ("reduce", "reduce-window") for reader in readers):
            return f"the sum of this line is taken in {dtype}"
        if not item.op_name:
            return "unknown: the program has no names of ops"
        if asked and not code:
            return "the program converts it there, or JAX promotes it (the text of the line is not here)"
        return f"converted to {dtype} inside of this line's call, by promotion or by a library"

    def _named(self, computation: Computation, value: Instruction) -> str:
        """Argument that a value is, through broadcasts; constants take the dtype of the other operand."""
        for _ in range(16):
            if value.opcode in ("broadcast", "reshape", "bitcast", "transpose", "get-tuple-element") and value.operands:
                value = computation.by_name[value.operands[0]]
            elif value.parameter_number is not None:
                callers = self._outer(computation, value)
                if not callers:
                    return value.op_name or value.name if computation.name == self.module.entry else "its operand"
                computation, value = callers[0]
            elif value.opcode in PLUMBING or value.opcode in ("dynamic-slice", "slice"):
                value = computation.by_name[value.operands[0]] if value.operands else value
                if not value.operands:
                    return ""
            else:
                return ""
        return ""

    def _users(self, computation: Computation, name: str) -> list[Instruction]:
        if computation.name not in self._readers:
            readers: dict[str, list[Instruction]] = defaultdict(list)
            for item in computation.instructions:
                for operand in item.operands:
                    readers[operand].append(item)
            self._readers[computation.name] = readers
        found: list[Instruction] = []
        for reader in self._readers[computation.name].get(name, ()):
            through = reader.opcode in ("broadcast", "reshape", "call")
            found += self._users(computation, reader.name) if through and reader.opcode != "call" else [reader]
        return found
