"""Data flow of a compiled XLA program across fusions, calls, branches and loops.

A value has many names: the root of a fusion's body is the fusion's result, a parameter of that body is an operand of
the fusion, an element of a loop's state is the initial value and the value that the body returns. The flow joins these
names, so that the instruction that computes a value is found wherever XLA placed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from perfscope.analyzers.graph.program_graph import Node, OpClass, Product, ProgramGraph, softmax_parts
from perfscope.analyzers.hlo import (
    REPEATED,
    Computation,
    HloModule,
    Instruction,
    ModuleCost,
    Shape,
    WindowDim,
    callees_first,
    path,
    result_of,
    tuple_index,
    window_dims,
)

POINTWISE = REPEATED | {
    "abs", "add", "and", "clamp", "compare", "divide", "erf", "exponential", "exponential-minus-one", "log",
    "log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "power", "select", "sign",
    "sqrt", "rsqrt", "subtract", "tanh", "xor",
}  # fmt: skip

_CLASSES: Mapping[str, OpClass] = {
    **dict.fromkeys(POINTWISE, "pointwise"),
    **dict.fromkeys(REPEATED, "repeat"),
    **dict.fromkeys(("multiply", "divide", "select", "negate"), "scale"),
    **dict.fromkeys(("dynamic-slice", "slice"), "slice"),
    **dict.fromkeys(("concatenate", "pad", "gather"), "move"),
    "add": "add",
    "broadcast": "broadcast",
    "dynamic-update-slice": "update",
    "exponential": "exponential",
    "subtract": "subtract",
}
_REDUCTIONS: Mapping[str, OpClass] = {"maximum": "maximum", "add": "sum"}
"""Classes of reductions by the op that they apply; XLA for CPU takes a first round by windows."""

_SOFTMAX_CALL = "online-softmax"
"""Path of XLA's own kernel of softmax and weighted sum on TPU. It reads the scores and the values."""

_RUNS = frozenset({"fusion", "call", "while", "conditional", "async-start"})
"""Opcodes that run the computations they call; others apply them to elements."""

_HANDED_ON = frozenset({"copy-start", "copy-done", "opt-barrier", "optimization-barrier"})
"""Opcodes whose result is their operand, even if it is a tuple with other values."""

_FIRST = frozenset({"custom-call", "copy-start"})
"""Opcodes whose first result is the value, followed by scratch memory, the source or flags."""

_MOST_NAMES = 64
"""Maximum depth of loops that pass on a whole state as one tuple; programs are less deep."""


class Value(Node, frozen=True, kw_only=True):
    """A value under one of its names."""

    computation: Computation
    instruction: Instruction


class HloProgram(ProgramGraph[Value]):
    """All values of a module by number. Linear in the module's instructions.

    Matrix products need the module's cost: without it they have the class ``other``.
    """

    def __init__(self, module: HloModule, cost: ModuleCost | None = None) -> None:
        self.module = module
        self._cost = cost
        order = [
            module.computations[name]
            for name in reversed(callees_first(module, lambda instruction: instruction.opcode in _RUNS))
        ]
        self.numbers: dict[tuple[str, str], int] = {}
        """By computation and instruction."""
        self._found: list[tuple[Computation, Instruction]] = []
        self._callers: dict[str, list[tuple[Computation, Instruction]]] = {}
        for computation in order:
            for instruction in computation.instructions:
                self.numbers[computation.name, instruction.name] = len(self._found)
                self._found.append((computation, instruction))
                for called in instruction.called if instruction.opcode in _RUNS else ():
                    self._callers.setdefault(called, []).append((computation, instruction))
        nodes = [self._value(computation, instruction) for computation, instruction in self._found]
        for number in range(len(nodes) if cost is not None else 0):
            call, reads = nodes[number].instruction, nodes[number].reads
            if call.opcode == "custom-call" and call.op_name == _SOFTMAX_CALL and len(reads) == 2:
                _divide_softmax_call(nodes, number)
        entry = module.entry_computation()
        roots = entry.root.operands if entry.root.opcode == "tuple" else (entry.root.name,)
        super().__init__(nodes, returned=[self.numbers[entry.name, name] for name in roots])

    def _value(self, computation: Computation, instruction: Instruction) -> Value:
        names, carried = self._names(computation, instruction)
        result = result_of(instruction)
        reads = tuple(self.numbers[computation.name, name] for name in instruction.operands)
        op = _CLASSES.get(instruction.opcode, "other")
        if instruction.opcode in ("reduce", "reduce-window") and instruction.called:
            op = _REDUCTIONS.get(self.module.computations[instruction.called[0]].root.opcode, "other")
        shapes = [self._found[number][1].shape for number in reads]
        product = self._product(computation, instruction, reads, shapes)
        return Value(
            computation=computation,
            instruction=instruction,
            op=op if product is None else "product",
            size=result.elements if instruction.opcode in _FIRST else instruction.shape.elements,
            bytes=result.bytes,
            reads=reads,
            names=() if self.numbers[computation.name, instruction.name] in names else names,
            carried=carried,
            product=product,
            row=row_of_windows(instruction, shapes) if op == "maximum" else None,
            place=(instruction.file or instruction.op_name, instruction.line if instruction.file else None),
        )

    def _product(
        self, computation: Computation, instruction: Instruction, reads: Sequence[int], shapes: Sequence[Shape]
    ) -> Product | None:
        """The matrix product of an instruction whose summed size follows from its FLOPs."""
        row = None if self._cost is None else self._cost.by_name.get((computation.name, instruction.name))
        size = result_of(instruction).elements
        if row is None or not row.is_product or not size or len(reads) < 2:
            return None
        summed = sum(row.once.products.values()) // (2 * size)
        return _sized_product((reads[0], reads[1]), shapes, size, summed) if summed else None

    def _names(self, computation: Computation, instruction: Instruction) -> tuple[tuple[int, ...], bool]:
        if instruction.opcode == "get-tuple-element":
            return self._element(computation, computation.by_name[instruction.operands[0]], tuple_index(instruction))
        if instruction.shape.dtype == "tuple" and instruction.opcode not in _HANDED_ON:
            return (), False
        if instruction.opcode in _HANDED_ON and instruction.operands:
            return (self.numbers[computation.name, instruction.operands[0]],), False
        if instruction.opcode in ("fusion", "call", "conditional"):
            bodies = [self.module.computations[name] for name in instruction.called]
            return tuple(self.numbers[body.name, body.root.name] for body in bodies), False
        if instruction.opcode == "parameter":
            return tuple(
                self.numbers[where.name, operand] for where, operand, _ in self._arguments(computation, instruction)
            ), any(loop for _, _, loop in self._arguments(computation, instruction))
        return (), False

    def _arguments(self, computation: Computation, instruction: Instruction) -> Iterator[tuple[Computation, str, bool]]:
        """Yield the callers' operands for a parameter; True for the state of a loop."""
        for where, caller in self._callers.get(computation.name, ()):
            slot = instruction.parameter_number or 0
            if caller.opcode == "conditional":  # the first operand selects the branch
                slot = 1 + caller.called.index(computation.name)
            if slot < len(caller.operands):
                yield where, caller.operands[slot], caller.opcode == "while"

    def _element(
        self, computation: Computation, instruction: Instruction, index: int, depth: int = 0
    ) -> tuple[tuple[int, ...], bool]:
        """Return the names of one element of a tuple, and whether it is a changing state."""
        result: list[int] = []
        carried = False
        holders: list[tuple[Computation, Instruction]] = []
        if depth > _MOST_NAMES:
            return (), True  # unknown, so nothing can be inferred
        if instruction.opcode == "tuple" and index < len(instruction.operands):
            return (self.numbers[computation.name, instruction.operands[index]],), False
        if instruction.opcode in ("fusion", "call", "conditional"):
            bodies = [self.module.computations[name] for name in instruction.called]
            holders = [(body, body.root) for body in bodies]
        elif instruction.opcode == "while":
            return self._state(computation, instruction, index, depth, inside=False)
        elif instruction.opcode in _HANDED_ON:
            holders = [(computation, computation.by_name[instruction.operands[0]])]
        elif instruction.opcode == "parameter":
            for where, caller in self._callers.get(computation.name, ()):
                if caller.opcode == "while":
                    return self._state(where, caller, index, depth, inside=True)
            holders = [
                (where, where.by_name[operand]) for where, operand, _ in self._arguments(computation, instruction)
            ]
        if not holders:
            return (self.numbers[computation.name, instruction.name],), False
        for where, holder in holders:
            names, changes = self._element(where, holder, index, depth + 1)
            result += names
            carried = carried or changes
        return tuple(result), carried

    def _state(
        self, computation: Computation, loop: Instruction, index: int, depth: int, *, inside: bool
    ) -> tuple[tuple[int, ...], bool]:
        """Return the names of an element of a loop's state: the initial value, and the body's result if it differs."""
        first, carried = self._element(computation, computation.by_name[loop.operands[0]], index, depth + 1)
        if len(loop.called) != 2:
            return first, True
        body = self.module.computations[loop.called[1]]
        root = body.root
        if root.opcode != "tuple" or index >= len(root.operands):
            return first, True
        name = root.operands[index]
        source, part = list(path(body, name))[-1]
        if source.opcode == "parameter" and part == (index,):
            return first, carried
        return (*first, self.numbers[body.name, name]), inside


def _sized_product(factors: tuple[int, int], shapes: Sequence[Shape], size: int, summed: int) -> Product:
    """A product of ``bmk`` and ``bkn`` elements with a result of ``bmn``, in any layout."""
    left, right = shapes[:2]
    return Product(
        factors=factors,
        batch=max(1, left.elements * right.elements // max(1, size * summed * summed)),
        summed=summed,
    )


def _divide_softmax_call(nodes: list[Value], number: int) -> None:
    """Make a softmax and a product of a library call."""
    call = nodes[number]
    shapes = [nodes[read].instruction.shape for read in call.reads]
    row = shapes[0].dims[-1] if shapes[0].dims else 1
    for op, size, reads in softmax_parts(len(nodes), call.reads[0], shapes[0].elements, row):
        nodes.append(replace(call, op=op, size=size, reads=reads))
    factors = (len(nodes) - 1, call.reads[1])
    product = _sized_product(factors, shapes, call.size, row)
    nodes[number] = replace(call, op="product", reads=factors, product=product)


def row_of_windows(instruction: Instruction, shapes: Sequence[Shape]) -> int | None:
    """Elements of the row whose maximum a reduction over windows writes to each of them; None for other reductions.

    XLA for TPU takes a maximum and repeats it in one op. Along every axis the window has one element, or it reaches
    the first and the last element from each position. ``shapes``: of the operands.
    """
    dims = instruction.shape.dims
    windows = window_dims(instruction.attributes.get("window", "")) if instruction.opcode == "reduce-window" else None
    if windows is None or len(windows) != len(dims) or not shapes or shapes[0].dims != dims:
        return None
    row = 1
    for window, length in zip(windows, dims, strict=True):
        if window == WindowDim(size=1):
            continue
        pad_high = window.size - 1 - window.pad_low
        plain = window.stride == window.lhs_dilate == window.rhs_dilate == 1
        if not plain or window.pad_low < length - 1 or pad_high < length - 1:
            return None
        row *= length
    return row if row > 1 else None
