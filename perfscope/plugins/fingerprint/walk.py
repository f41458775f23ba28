"""Walks the ops of one step of both sides in order, up to the first that differs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from itertools import zip_longest

from msgspec.structs import replace

from perfscope.plugins.fingerprint.document import CALL, OPTIMIZER
from perfscope.plugins.fingerprint.equality import differing, distance, error, norm, rows_alone, same, same_row
from perfscope.plugins.fingerprint.reading import OpLine, Step, ValueLine, kind_of
from perfscope.plugins.fingerprint.result import Cause, Counts, Difference, Differing, Place
from perfscope.plugins.parity import FACTOR, expected_error, reduction_length

MOST_SHOWN = 20
"""Most differing values of one op in the document."""
_NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")
_SCALARS_ALONE = 1e-3
"""Largest relative difference of numbers among arguments that rounding may explain: they were read from tensors."""


class StepWalk:
    """The comparison of a step whose ops both sides recorded."""

    def __init__(self, a: Step, b: Step, ranks: tuple[int, int], counts: Counts, *, rounding: bool) -> None:
        self.a, self.b, self.ranks, self.counts, self.rounding = a, b, ranks, counts, rounding
        self._read = {side: _read_values(step) for side, step in (("a", a), ("b", b))}
        self._writers: dict[int, int] = {}
        """Value of A -> number of the op that made it."""
        self._mixed: set[int] = set()
        """Values of A that depend on the whole batch, where the batches differ."""
        self._roundings = 0
        self._terms = 0

    def first(self) -> Difference | None:
        """The first difference; ``None`` without any."""
        before: tuple[int, OpLine] | None = None
        for number, (a, b) in enumerate(zip_longest(self.a.ops, self.b.ops)):
            found = self._op(number, a, b)
            if found is not None:
                return found if before is None else replace(found, before=place_of(*before))
            self._writers.update((value, number) for value in a.makes)
            before = number, a
            self.counts.ops += 1
        return None

    def _op(self, number: int, a: OpLine | None, b: OpLine | None) -> Difference | None:
        if a is None or b is None or (a.name, a.module, a.phase) != (b.name, b.module, b.phase):
            return self._difference("control flow", number, a, b)
        if len(a.reads) != len(b.reads) or a.names != b.names:
            return self._states(number, a, b) if a.names or b.names else self._difference("control flow", number, a, b)
        inputs = self._differing(a, b, a.reads, b.reads, "input", self._explained_input)
        if inputs and not all(is_generator(row.role) for _, row in inputs):
            return self._input(number, a, b, inputs)
        if not self._same_arguments(a.arguments, b.arguments):
            return self._difference("arguments", number, a, b)
        terms = self._terms_of(a)
        self._roundings, self._terms = self._roundings + 1, self._terms + terms
        outputs = self._differing(a, b, a.makes, b.makes, "output", self._explained_output(a, b, terms))
        if not outputs:
            return None
        return self._output(number, a, b, outputs)

    def _differing(
        self,
        a: OpLine,
        b: OpLine,
        numbers_a: tuple[int, ...],
        numbers_b: tuple[int, ...],
        role: str,
        explained: Callable[[ValueLine, ValueLine], float | None],
    ) -> list[tuple[int, Differing]]:
        """The values that differ by more than is explained, with their positions."""
        found = []
        whole_batch = role == "output" and any(self._in_part(one, other) for one, other in self._pairs(a, b))
        for position, (one, other) in enumerate(zip(numbers_a, numbers_b, strict=False)):
            left, right = self.a.values[one], self.b.values[other]
            self.counts.values += 1
            if self._equal(left, right) or one in self._mixed:
                continue
            if whole_batch and (left.shape == right.shape or not rows_alone(left, right)):
                self._mixed.add(one)
                continue
            if role == "output" and position and not self._is_read(one, other):
                self.counts.unread += 1
                continue
            limit = explained(left, right)
            far = error(left, right)
            if limit is not None and far is not None and far <= limit:
                self.counts.unequal += 1
                continue
            name = a.names[position] if role == "input" and a.names else f"{role} {position}"
            found.append((position, differing(name, left, right, limit)))
        return found

    def _pairs(self, a: OpLine, b: OpLine) -> Iterator[tuple[ValueLine, ValueLine]]:
        for one, other in zip(a.reads, b.reads, strict=False):
            if one in self._mixed:
                yield self.a.values[one], replace(self.b.values[other], shape=())
            else:
                yield self.a.values[one], self.b.values[other]

    def _in_part(self, a: ValueLine, b: ValueLine) -> bool:
        """Whether an input is of another batch, so that a result in one shape depends on all of it."""
        return self.counts.rows and a.shape != b.shape

    def _equal(self, a: ValueLine, b: ValueLine) -> bool:
        if same(a, b):
            return True
        if self._inference and rows_alone(a, b) and same_row(a, b):
            self.counts.rows = True
            return True
        return False

    @property
    def _inference(self) -> bool:
        return not any(op.name == OPTIMIZER or op.phase for op in (*self.a.ops, *self.b.ops))

    def _is_read(self, a: int, b: int) -> bool:
        return a in self._read["a"] or b in self._read["b"]

    def _explained_input(self, a: ValueLine, b: ValueLine) -> float | None:
        """Inputs were judged as the results of their ops."""
        return math.inf if self.rounding and a.sketch is not None and a.shape == b.shape else None

    def _explained_output(self, a: OpLine, b: OpLine, terms: int) -> Callable[[ValueLine, ValueLine], float | None]:
        """The largest relative error that is explained by those of the inputs and the rounding of the op itself.

        Also explained is what all ops so far may have rounded, and what a difference of inputs leaves of larger ones.
        """

        def explained(one: ValueLine, other: ValueLine) -> float | None:
            size = norm(one)
            if not self.rounding or size is None or one.shape != other.shape:
                return None
            pairs = [(self.a.values[left], self.b.values[right]) for left, right in zip(a.reads, b.reads, strict=True)]
            floats = [(left, right) for left, right in pairs if left.sketch is not None]
            own = expected_error(one.dtype, 1, terms)
            relative = sum(error(left, right) or 0.0 for left, right in floats)
            sizes = [norm(left) or 0.0 for left, _ in floats]
            apart = sum((distance(left, right) or 0.0) for left, right in floats) * math.sqrt(terms)
            so_far = expected_error(one.dtype, self._roundings, self._terms)
            kept = (apart + own * max(sizes, default=0.0)) / size if size else math.inf
            return FACTOR * max(relative + own, so_far, kept)

        return explained

    def _terms_of(self, op: OpLine) -> int:
        shapes = [self.a.values[number].shape for number in op.reads]
        if not shapes or not op.makes:
            return 1
        output = self.a.values[op.makes[0]].shape
        if op.name == "dot_general" and len(shapes) > 1:
            return max(1, math.isqrt(math.prod(shapes[0]) * math.prod(shapes[1]) // max(math.prod(output), 1)))
        if op.name.startswith(("reduce_", "cum")):
            return max(math.prod(shapes[0]) // max(math.prod(output), 1), 1)
        try:
            return max(1, reduction_length(op.name, shapes, output))
        except IndexError:  # operands in another order, or numbers in place of tensors
            return 1

    def _same_arguments(self, a: str, b: str) -> bool:
        if a == b:
            return True
        one, other = _NUMBER.findall(a), _NUMBER.findall(b)
        if self.counts.rows and _NUMBER.sub("", a) == _NUMBER.sub("", b):
            return True  # sizes of the batch
        if not self.rounding or _NUMBER.sub("", a) != _NUMBER.sub("", b):
            return False
        return all(
            math.isclose(float(left), float(right), rel_tol=_SCALARS_ALONE)
            for left, right in zip(one, other, strict=True)
        )

    def _input(self, number: int, a: OpLine, b: OpLine, found: list[tuple[int, Differing]]) -> Difference:
        """An input differs although everything before is equal: it comes from outside, or changed unseen."""
        if a.name in (CALL, OPTIMIZER):
            cause = state_cause([row.role for _, row in found])
            found = [(position, row) for position, row in found if cause == "data" or row.role not in HOST_GENERATORS]
            return self._difference(cause, number, a, b, found)
        values = [(self.a.values[a.reads[position]], self.b.values[b.reads[position]]) for position, _ in found]
        if any(left.dtype == "generator" for left, _ in values):
            return self._difference("random", number, a, b, found)
        if any(rows_alone(left, right) for left, right in values):
            return self._difference("batch", number, a, b, found)
        if any(left.shape != right.shape for left, right in values):
            return self._difference("shape", number, a, b, found)
        writers = [self._writer(a.reads[position]) for position, _ in found]
        if writers[0] is not None:
            written = place_of(writers[0], self.a.ops[writers[0]])
            return replace(self._difference("unseen write", number, a, b, found), written_by=written)
        return self._difference("data", number, a, b, found)

    def _writer(self, value: int | None) -> int | None:
        """The op that last wrote the memory of a value."""
        while value is not None:
            if value in self._writers:
                return self._writers[value]
            value = self.a.values[value].base
        return None

    def _output(self, number: int, a: OpLine, b: OpLine, found: list[tuple[int, Differing]]) -> Difference:
        values = [(self.a.values[a.makes[position]], self.b.values[b.makes[position]]) for position, _ in found]
        inputs = [self.a.values[value] for value in a.reads]
        cause: Cause = "op"
        if a.name.startswith("c10d."):
            cause = "collective"
        elif any(left.shape != right.shape and not rows_alone(left, right) for left, right in values):
            cause = "shape"
        elif any(value.hash is None for value in inputs):
            cause = "unwritten memory"
        elif self.rounding and any(left.sketch is None and left.dtype == right.dtype for left, right in values):
            cause = "choice"
        return self._difference(cause, number, a, b, found)

    def _states(self, number: int, a: OpLine, b: OpLine) -> Difference:
        """A moment whose values have other names on each side."""
        missing = sorted(set(a.names) ^ set(b.names))
        rows = [(position, _absent(name)) for position, name in enumerate(missing)]
        return self._difference(state_cause(missing), number, a, b, rows)

    def _difference(
        self,
        cause: Cause,
        number: int,
        a: OpLine | None,
        b: OpLine | None,
        found: list[tuple[int, Differing]] = [],  # noqa: B006 (never changed)
    ) -> Difference:
        return Difference(
            cause=cause,
            rank_a=self.ranks[0],
            rank_b=self.ranks[1],
            step_a=self.a.number,
            step_b=self.b.number,
            a=None if a is None else place_of(number, a),
            b=None if b is None else place_of(number, b),
            values=tuple(row for _, row in found[:MOST_SHOWN]),
            values_left=max(0, len(found) - MOST_SHOWN),
        )


def _absent(name: str) -> Differing:
    return Differing(role=f"{name}, on one side only", dtype="", shape_a=(), shape_b=())


HOST_GENERATORS = ("generator python", "generator numpy")
"""They may explain other data, and nothing else."""


def is_generator(kind: str) -> bool:
    """Whether values are the state of a generator, which may differ alone, because perhaps nothing draws from it."""
    return kind.startswith("generator ")


def state_cause(names: list[str]) -> Cause:
    """The cause that differing values of a moment show, the most basic first."""
    kinds = {kind_of(name) for name in names}
    if "parameter" in kinds:
        return "weights"
    if kinds & {"generator cpu", "generator cuda", "random"}:
        return "random"
    if "input" in kinds:
        return "data"
    if "buffer" in kinds:
        return "buffers"
    return "gradients" if {kind for kind in kinds if not is_generator(kind)} == {"gradient"} else "optimizer state"


def place_of(number: int, op: OpLine) -> Place:
    """The place of an op in the document."""
    return Place(
        op=op.name, line=op.line, module=op.module, phase=op.phase, number=number, arguments=op.arguments
    )  # fmt: skip


def _read_values(step: Step) -> set[int]:
    """Values that some op reads, and those whose other views are read."""
    read = {number for op in step.ops for number in op.reads}
    bases = (step.values[number].base for number in read)
    return read | {base for base in bases if base is not None}
