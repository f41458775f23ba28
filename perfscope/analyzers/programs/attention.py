"""Attention that a compiled XLA program computes by its formula: scores, softmax and sum through memory.

The scores of a softmax are the products that its exponential's argument comes from. All values of as many elements
that elementwise ops join to them, in any fusion, are one group: scores, masked scores, probabilities, in the backward
the gradients of both. A group is attention if

* the exponential is of a difference with the maximum of its row, and its row is also summed;
* what it yields, multiplied and selected only, is a factor of a product that sums over the row. (Of a cross entropy
  the one-hot targets are subtracted before.)
* the products are batched, or all their factors were computed: not by weights, as in a gate or an output layer.

Blocked attention (online softmax, Milakov and Gimelshein 2018) keeps a running maximum: the maximum of a row combines
with a state of the loop, or an exponential of the difference of two maxima rescales what was summed before. Such a
group is left out, whichever loop is around it.

XLA for TPU makes one kernel of softmax and sum where both factors are float32 (``online-softmax``): it reads scores
that a product wrote, so such a group is attention as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

from msgspec import Struct

from perfscope.analyzers.hlo.cost.module import ModuleCost
from perfscope.analyzers.hlo.cost.ops import result_of
from perfscope.analyzers.hlo.cost.products import WindowDim, window_dims
from perfscope.analyzers.hlo.flow import POINTWISE, Flow
from perfscope.analyzers.hlo.module import Instruction, Shape
from perfscope.analyzers.hlo.views import REPEATED

# Maxima of rows in a compiled XLA program, and whether they are running ones.
#
# A softmax over whole rows subtracts the maximum of each. Blocked attention has only a part of the row:
# it combines the maximum of a block with a state of the loop, or with the maximum of the previous block if the loop was
# unrolled; then the exponential of the difference of two maxima rescales the earlier sums.
#
# XLA for TPU takes the maximum and repeats it in one op, if nothing else reads it: a reduction over windows that
# extend by the length of the row to both sides, so that its result is as large as its operand.


_MOST_STEPS = 150
"""From a row's maximum back to the scores; some thirty in programs. Beyond it counts as running: nothing is found."""


class Maxima(Struct, frozen=True, kw_only=True):
    """What a value of one element a row comes from."""

    reductions: frozenset[int]
    """Maxima along an axis."""
    running: bool
    """A state of a loop is in it, or one of the maxima is rescaled to another."""


def row_of_windows(flow: Flow, number: int) -> int | None:
    """Elements of the row whose maximum a reduction by windows repeats for each of them; None: it is none of these.

    Along every axis the window is one element, or reaches the first and the last element from wherever it stands.
    """
    value = flow.values[number]
    instruction = value.instruction
    if instruction.opcode != "reduce-window" or not value.operands or not flow.reduces_with(number, "maximum"):
        return None
    dims = instruction.shape.dims
    windows = window_dims(instruction.attributes.get("window", ""))
    if windows is None or len(windows) != len(dims) or flow.values[value.operands[0]].instruction.shape.dims != dims:
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


class RowMaxima:
    """Finds the maxima behind values of less than ``size`` elements, those of the scores."""

    def __init__(self, flow: Flow, size: int) -> None:
        self._flow, self._size = flow, size

    def of(self, number: int) -> Maxima:
        """The maxima behind a value."""
        reductions, running = self._behind(number)
        return Maxima(reductions=reductions, running=running or bool(reductions & self._rescaled))

    def is_rescaled(self, values: Collection[int]) -> bool:
        """Whether a maximum of some of these values is rescaled to another one."""
        flow = self._flow
        sources = (flow.values[number].operands[:1] for number in self._rescaled)
        return any(back in values for source in sources for back in flow.back(source))

    def repeated(self, number: int) -> int | None:
        """The smaller value that a value repeats; None: it does not."""
        flow, waiting, seen = self._flow, [number], set[int]()
        while waiting:
            for back in flow.back([waiting.pop()]):
                if back in seen or not flow.values[back].operands:
                    continue
                seen.add(back)
                first = flow.values[back].operands[0]
                if flow.opcode(back) == "broadcast" and 1 <= flow.values[first].size < flow.values[back].size:
                    return first
                if flow.opcode(back) in REPEATED:
                    waiting.append(first)
        return None

    def _behind(self, number: int) -> tuple[frozenset[int], bool]:
        flow, waiting, seen = self._flow, [number], set[int]()
        reductions: set[int] = set()
        running = False
        while waiting:
            if len(seen) > _MOST_STEPS:
                return frozenset(reductions), True
            for back in flow.back([waiting.pop()]):
                if back in seen:
                    continue
                seen.add(back)
                value = flow.values[back]
                running = running or value.carried
                if value.carried or value.size >= self._size:
                    continue
                if flow.reduces_with(back, "maximum"):
                    reductions.add(back)
                    waiting.extend(value.operands[:1])  # a maximum of maxima, where it is taken in two rounds
                elif value.instruction.opcode in POINTWISE or flow.reduces_with(back, "add"):
                    waiting.extend(value.operands)  # through sums too: a softmax may subtract the log of its sum
        return frozenset(reductions), running

    @cached_property
    def _rescaled(self) -> frozenset[int]:
        """Maxima whose difference with another one is exponentiated."""
        flow = self._flow
        result: set[int] = set()
        for value in flow.values:
            if value.instruction.opcode != "exponential" or not 1 < value.size < self._size:
                continue
            for number in flow.back(value.operands):
                if flow.opcode(number) == "subtract":
                    sides = [self._behind(operand) for operand in flow.values[number].operands]
                    if all(reductions or running for reductions, running in sides):
                        result.update(*(reductions for reductions, _ in sides))
        return frozenset(result)


# Matrix products of a compiled XLA program by their sizes, whichever op or library call they are.


class Product(Struct, frozen=True, kw_only=True):
    """A matrix product by sizes: ``batch`` times ``[rows, summed] x [summed, columns]``."""

    number: int
    """In the flow."""
    instruction: Instruction
    factors: tuple[int, int]
    shapes: tuple[Shape, Shape]
    batch: int
    summed: int

    @property
    def result(self) -> Shape:
        """Shape of the result, without the scratch memory of a library."""
        return result_of(self.instruction)

    @property
    def size(self) -> int:
        """Elements of the result."""
        return self.result.elements


def products_of(cost: ModuleCost, flow: Flow) -> dict[int, Product]:
    """Matrix products whose summed size is known, by number in the flow.

    With operands of ``bmk`` and ``bkn`` elements and a result of ``bmn``, whatever the layout: ``k`` from the product's
    FLOPs, ``b`` is the product of the operands' sizes over the result's and ``k`` squared.
    """
    result = {}
    for row in cost.rows:
        instruction = row.instruction
        flops = sum(row.once.products.values())
        size = result_of(instruction).elements
        number = flow.numbers.get((row.computation, instruction.name))
        if not row.is_product or number is None or not size or len(instruction.operands) < 2:
            continue
        summed = flops // (2 * size)
        operands = flow.values[number].operands
        left, right = (flow.values[operand].instruction.shape for operand in operands[:2])
        if summed:
            result[number] = Product(
                number=number,
                instruction=instruction,
                factors=(operands[0], operands[1]),
                shapes=(left, right),
                batch=max(1, left.elements * right.elements // (size * summed * summed)),
                summed=summed,
            )
    return result


_LINEAR = REPEATED | {"multiply", "divide", "select", "negate"}
"""From the exponential to the product: normalisation, dropout, masks."""

_SLICES = frozenset({"dynamic-slice", "slice"})

_SOFTMAX_CALL = "online-softmax"
"""Path of that kernel, with no function of the program in it; its operands are the scores and the values."""

_HLO_ATTENTION_MOST_STEPS = 300
"""From a value back to what computed it; projections, norms and rotary embeddings are within a hundred, masks and
scales of scores within fifty. Keeps the search linear in the program."""


class ScoreGroup(Struct, frozen=True, kw_only=True):
    """Values of the size of one attention's scores that elementwise ops join."""

    scores: tuple[Product, ...]
    """Products that the softmax is of; of a group of the backward that has none of its own, all its products."""
    values: frozenset[int]
    """Each of as many elements as the scores."""
    stacks: frozenset[int]
    """Larger values that they are slices of: what a loop keeps for the backward."""
    place: Instruction
    """What names the line: the product of the scores, or the first of the group that says one."""
    size: int
    """Elements of the scores."""
    fused_bytes: int | None
    """Queries, keys, values and outputs once each; None: the softmax is of another group, this is its backward."""


def score_groups(flow: Flow, products: Mapping[int, Product]) -> Iterator[ScoreGroup]:
    """Groups that are attention, and those of its backward in other loops that compute or read the same scores."""
    by_size: dict[int, list[Product]] = {}
    for product in products.values():
        by_size.setdefault(product.size, []).append(product)
    sizes = {value.size for value in flow.values if value.instruction.opcode == "exponential"}
    for size in sorted(sizes & by_size.keys()):
        search = _Search(flow, products, size)
        score_groups = [search.judged(group) for group in search.groups()]
        places = {_line(score) for group in score_groups if group.fused_bytes is not None for score in group.scores} - {
            None
        }
        yield from (
            group
            for group in score_groups
            if group.fused_bytes is not None or any(_line(score) in places for score in group.scores)
        )


def _line(product: Product) -> tuple[str | int | None, ...] | None:
    """The line a product is from, else its path; None: the program does not say."""
    instruction = product.instruction
    if instruction.file is not None:
        return instruction.file, instruction.line
    return (instruction.op_name,) if instruction.op_name else None


class _Search:
    """Groups of values of one size."""

    def __init__(self, flow: Flow, products: Mapping[int, Product], size: int) -> None:
        self.flow, self.products, self.size = flow, products, size
        self.joined = self._join()
        self.maxima = RowMaxima(flow, size)

    def groups(self) -> list[tuple[frozenset[int], frozenset[int]]]:
        """Values and stacks of every group."""
        result = []
        waiting = dict.fromkeys(self.joined)
        while waiting:
            start = next(iter(waiting))
            group, reached = {start}, [start]
            while reached:
                for other in self.joined[reached.pop()]:
                    if other not in group:
                        group.add(other)
                        reached.append(other)
            for number in group:
                del waiting[number]
            values = frozenset(number for number in group if self.flow.values[number].size == self.size)
            result.append((values, frozenset(group) - values))
        return result

    def judged(self, group: tuple[frozenset[int], frozenset[int]]) -> ScoreGroup:
        """What a group is."""
        values, stacks = group
        attention = self._attention(values)
        if attention is not None:
            scores, moved = attention
        else:
            scores = tuple(self.products[number] for number in sorted(values) if number in self.products)
            moved = None
        ones = [score.instruction for score in scores]  # a group begins with a product: there is one at least
        ones += [self.flow.values[number].instruction for number in sorted(values)]
        return ScoreGroup(
            scores=scores,
            values=values,
            stacks=stacks,
            place=next((instruction for instruction in ones if instruction.file is not None), ones[0]),
            size=self.size,
            fused_bytes=moved,
        )

    def _join(self) -> dict[int, list[int]]:
        """Values that come from products of the size by elementwise ops, with their neighbours."""
        flow = self.flow
        result: dict[int, list[int]] = {}
        waiting = [number for number, product in self.products.items() if product.size == self.size]
        result.update((number, []) for number in waiting)
        while waiting:
            number = waiting.pop()
            for user in flow.users[number]:
                if self._continues(number, user):
                    if user not in result:
                        result[user] = []
                        waiting.append(user)
                    result[number].append(user)
                    result[user].append(number)
        return result

    def _continues(self, number: int, user: int) -> bool:
        value, following = self.flow.values[number], self.flow.values[user]
        opcode = following.instruction.opcode
        if value.size == self.size:
            if opcode == "dynamic-update-slice":
                return len(following.operands) > 1 and following.operands[1] == number and following.size > self.size
            return following.size == self.size and bool(following.names or opcode in POINTWISE)
        if opcode in _SLICES:
            return following.size == self.size
        same = following.size == value.size
        return same and bool(
            following.names
            or opcode in REPEATED
            or (opcode == "dynamic-update-slice" and number == following.operands[0])
        )

    def _attention(self, values: frozenset[int]) -> tuple[tuple[Product, ...], int] | None:
        """The products whose softmax the group holds, and the bytes a fused kernel moves in place of all this."""
        called = self._softmax_call(values)
        if called is not None:
            return called
        rows = {
            number: row
            for number in sorted(values)
            if self.flow.opcode(number) == "exponential" and (row := self._row_size(number, values)) is not None
        }
        # XLA computes the exponential again in every fusion that needs it: the sum may be of another one
        linear = self._linear(rows, values)
        made = dict.fromkeys(number for row in rows for number in self._sources(row, values))
        scores = tuple(self.products[number] for number in made)
        users = {user for number in linear for user in self.flow.users[number]}
        if (
            not scores
            or not any(self.flow.reduces_with(user, "add") for user in users)
            or self._is_returned(linear, scores, values)
        ):
            return None
        weighted = [self.products[user] for user in sorted(users) if user in self.products]
        for product in weighted:
            slot = 1 if product.factors[0] in linear else 0
            factors = [product.factors[slot], *(factor for score in scores for factor in score.factors)]
            batched = all(product.batch > 1 for product in (product, *scores))
            if product.summed in rows.values() and (batched or all(map(self._is_computed, factors))):
                shapes = (*scores[0].shapes, product.shapes[slot], product.result)
                return scores, sum(shape.bytes for shape in shapes)
        return None

    def _softmax_call(self, values: frozenset[int]) -> tuple[tuple[Product, ...], int] | None:
        """As ``_attention``, of a group that the compiler's own kernel reads."""
        for number in sorted({user for value in values for user in self.flow.users[value]}):
            value = self.flow.values[number]
            if value.instruction.opcode != "custom-call" or value.instruction.op_name != _SOFTMAX_CALL:
                continue
            scores = tuple(self.products[made] for made in self._sources(value.operands[0], values))
            if scores and value.operands[0] in values and len(value.operands) == 2:
                weighed = self.flow.values[value.operands[1]].instruction.shape
                shapes = (*scores[0].shapes, weighed, result_of(value.instruction))
                return scores, sum(shape.bytes for shape in shapes)
        return None

    def _row_size(self, exponential: int, values: frozenset[int]) -> int | None:
        """Elements of the row whose maximum is subtracted; None if there is none, or it is a running maximum."""
        flow = self.flow
        for number in self._upstream(exponential, values):
            if flow.opcode(number) not in ("subtract", "add"):
                continue
            for operand in flow.values[number].operands:
                rows = self.maxima.repeated(operand)
                if rows is None:
                    whole = self._window_row(operand, values)
                    if whole is not None:
                        return None if self.maxima.is_rescaled(values) else whole
                    continue
                maxima = self.maxima.of(rows)
                sources = (flow.values[reduction].operands[:1] for reduction in maxima.reductions)
                if any(back in values for source in sources for back in flow.back(source)):
                    return None if maxima.running else self.size // flow.values[rows].size
        return None

    def _window_row(self, operand: int, values: frozenset[int]) -> int | None:
        """Elements of the row of the group whose maximum a reduction by windows repeats; None: it does not."""
        for number in self.flow.back([operand]):
            row = row_of_windows(self.flow, number)
            if row is not None and any(
                back in values for back in self.flow.back(self.flow.values[number].operands[:1])
            ):
                return row
        return None

    def _upstream(self, number: int, values: frozenset[int]) -> list[int]:
        """Values of the group that a value is computed from, the nearest first; up to products."""
        result = {number: None}
        waiting = [number]
        while waiting and len(result) < _HLO_ATTENTION_MOST_STEPS:
            value = self.flow.values[waiting.pop(0)]
            for source in value.names or value.operands:
                if source in values and source not in result:
                    result[source] = None
                    if source not in self.products:
                        waiting.append(source)
        return list(result)

    def _sources(self, number: int, values: frozenset[int]) -> list[int]:
        """Products that a value comes from."""
        return [value for value in self._upstream(number, values) if value in self.products]

    def _linear(self, exponentials: Iterable[int], values: frozenset[int]) -> frozenset[int]:
        """Values that are an exponential times something."""
        linear = set(exponentials)
        waiting = list(linear)
        while waiting:
            number = waiting.pop()
            for user in self.flow.users[number]:
                value = self.flow.values[user]
                if user in values and user not in linear and (value.names or value.instruction.opcode in _LINEAR):
                    linear.add(user)
                    waiting.append(user)
        return frozenset(linear)

    def _is_returned(self, linear: frozenset[int], scores: tuple[Product, ...], values: frozenset[int]) -> bool:
        """Whether the program's caller gets the probabilities: no fused kernel would hand them out.

        Gradients of the scores, returned as those of a bias, come from another product too.
        """
        entry = self.flow.module.entry_computation()
        roots = entry.root.operands if entry.root.opcode == "tuple" else (entry.root.name,)
        returned = linear.intersection(self.flow.back(self.flow.numbers[entry.name, name] for name in roots))
        return any(set(self._sources(number, values)) <= {score.number for score in scores} for number in returned)

    def _is_computed(self, number: int) -> bool:
        """Whether a factor comes from another product of the program: weights do not."""
        waiting, seen = [number], set[int]()
        while waiting and len(seen) < _HLO_ATTENTION_MOST_STEPS:
            for back in self.flow.back([waiting.pop()]):
                if back in self.products:
                    return True
                if back in seen or self.flow.values[back].carried:
                    continue
                seen.add(back)
                if self.flow.opcode(back) in POINTWISE | _SLICES | {"concatenate", "pad", "gather"}:
                    waiting.extend(self.flow.values[back].operands)
        return False
