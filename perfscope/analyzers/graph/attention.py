"""Attention that a program computes by its formula: scores, softmax and sum through memory.

The scores of a softmax are the products that its exponential's argument comes from. All values with as many elements
that elementwise ops connect to them are one group: scores, masked scores, probabilities, and in the backward the
gradients of both. A group is attention if

* the exponential is of a difference with the maximum of its row, and its row is also summed;
* the exponential, after multiplications and selections only, is a factor of a product that sums over the row. (A cross
  entropy subtracts the one-hot targets first.)
* no factor is a weight, as in a gate or an output layer. If weights are not known, the products must be batched or
  all their factors must be computed by other products.

Blocked attention (online softmax, Milakov and Gimelshein 2018) keeps a running maximum: the maximum of a row is
combined with a state of the loop, or an exponential of the difference of two maxima rescales the earlier sum. Such
groups are left out, whatever loop they are in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from msgspec import Struct

from perfscope.analyzers.graph.program_graph import (
    ELEMENTWISE,
    LINEAR,
    MOVES,
    NOWHERE,
    Node,
    OpClass,
    Product,
    ProgramGraph,
)

_MOST_MAXIMUM_STEPS = 150
"""Values from a row's maximum back to the scores; programs have about thirty. Beyond it the maximum counts as running,
so that nothing is found."""

_MOST_STEPS = 300
"""Values from a factor or a probability back to its product; projections, norms and rotary embeddings take less than
a hundred, masks and scales of scores less than fifty. Keeps the search linear in the program."""


class ScoreGroup(Struct, frozen=True, kw_only=True):
    """Values of the size of one attention's scores that elementwise ops connect. All are nodes."""

    scores: tuple[int, ...]
    """Products that the softmax is of; in a group of the backward without a softmax, all its products."""
    exponential: int | None
    """The first exponential of the softmax; None in a group without one."""
    weighted: int | None
    """The product of the probabilities and the values; None in a group without a softmax."""
    values: frozenset[int]
    """Each with as many elements as the scores."""
    stacks: frozenset[int]
    """Larger values that they are slices of: what a loop keeps for the backward."""
    place: int
    """The first product of the scores, or the first of the group, with a place in the program."""
    size: int
    """Elements of the scores."""
    fused_bytes: int | None
    """Queries, keys, values and outputs once each; None without a softmax."""

    def kernels(self, graph: ProgramGraph[Node]) -> set[int]:
        """Ops of the group other than products."""
        joined = (graph.nodes[number] for number in self.values)
        return {node.kernel for node in joined if node.kernel is not None and node.product is None}


def score_groups(graph: ProgramGraph[Node]) -> Iterator[ScoreGroup]:
    """Groups that are attention, and groups of its backward in other loops that compute or read the same scores."""
    nodes = graph.nodes
    products = {node.size for node in nodes if node.product is not None}
    for size in sorted(products & {node.size for node in nodes if node.op == "exponential"}):
        search = _Search(graph, size)
        groups = [search.judged(group) for group in search.groups()]
        places = {nodes[score].place for group in groups if group.weighted is not None for score in group.scores}
        yield from (
            group
            for group in groups
            if group.weighted is not None or any(nodes[score].place in places - {NOWHERE} for score in group.scores)
        )


def _sums(product: Product, row: int, batch: int) -> bool:
    """Whether a product sums over rows of so many elements; XLA splits a long sum into more products of a batch."""
    return product.summed == row or (row % product.summed == 0 and product.batch * product.summed == batch * row)


class RowMaxima:
    """Finds the row maxima that values with less than ``size`` elements, the size of the scores, come from."""

    def __init__(self, graph: ProgramGraph[Node], size: int) -> None:
        self._graph, self._size = graph, size

    def of(self, number: int) -> tuple[frozenset[int], bool]:
        """The maxima that a value comes from, and whether they are running ones.

        Then a state of a loop is in the value, or one of the maxima is rescaled to another.
        """
        reductions, running = self._behind(number)
        return reductions, running or bool(reductions & self._rescaled)

    def is_rescaled(self, values: Collection[int]) -> bool:
        """Whether a maximum of some of these values is rescaled to another one."""
        sources = (self._graph.nodes[number].reads[:1] for number in self._rescaled)
        return any(back in values for source in sources for back in self._graph.back(source))

    def repeated(self, number: int) -> int | None:
        """The smaller value that a value repeats; None if it does not repeat one."""
        nodes, waiting, seen = self._graph.nodes, [number], set[int]()
        while waiting:
            for back in self._graph.back([waiting.pop()]):
                if back in seen or not nodes[back].reads:
                    continue
                seen.add(back)
                first = nodes[back].reads[0]
                if nodes[back].op == "broadcast" and 1 <= nodes[first].size < nodes[back].size:
                    return first
                if nodes[back].op in ("repeat", "broadcast"):
                    waiting.append(first)
        return None

    def _behind(self, number: int) -> tuple[frozenset[int], bool]:
        waiting, seen = [number], set[int]()
        reductions: set[int] = set()
        running = False
        while waiting:
            if len(seen) > _MOST_MAXIMUM_STEPS:
                return frozenset(reductions), True
            for back in self._graph.back([waiting.pop()]):
                if back in seen:
                    continue
                seen.add(back)
                node = self._graph.nodes[back]
                running = running or node.carried
                if node.carried or node.size >= self._size:
                    continue
                if node.op == "maximum":
                    reductions.add(back)
                    waiting.extend(node.reads[:1])  # a maximum of maxima, if it is taken in two rounds
                elif node.op in ELEMENTWISE or node.op == "sum":
                    waiting.extend(node.reads)  # through sums too: a softmax may subtract the log of its sum
        return frozenset(reductions), running

    @cached_property
    def _rescaled(self) -> frozenset[int]:
        """Maxima whose difference with another one is exponentiated."""
        nodes = self._graph.nodes
        result: set[int] = set()
        for node in nodes:
            if node.op != "exponential" or not 1 < node.size < self._size:
                continue
            for number in self._graph.back(node.reads):
                if nodes[number].op == "subtract":
                    sides = [self._behind(operand) for operand in nodes[number].reads]
                    if all(reductions or running for reductions, running in sides):
                        result.update(*(reductions for reductions, _ in sides))
        return frozenset(result)


class _Search:
    """Groups of values of one size."""

    def __init__(self, graph: ProgramGraph[Node], size: int) -> None:
        self.graph, self.nodes, self.size = graph, graph.nodes, size
        self.joined = self._join()
        self.maxima = RowMaxima(graph, size)

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
            values = frozenset(number for number in group if self.nodes[number].size == self.size)
            result.append((values, frozenset(group) - values))
        return result

    def judged(self, group: tuple[frozenset[int], frozenset[int]]) -> ScoreGroup:
        """The group with its scores, if it has any."""
        values, stacks = group
        found = self._attention(values)
        products = tuple(number for number in sorted(values) if self.nodes[number].product)
        scores, exponential, weighted, fused_bytes = found or (products, None, None, None)
        ones = (*scores, *sorted(values))  # a group begins with a product: there is at least one
        return ScoreGroup(
            scores=scores,
            exponential=exponential,
            weighted=weighted,
            values=values,
            stacks=stacks,
            place=next((number for number in ones if self.nodes[number].place[1] is not None), ones[0]),
            size=self.size,
            fused_bytes=fused_bytes,
        )

    def _join(self) -> dict[int, list[int]]:
        """Values that elementwise ops compute from products of the size, with their neighbours."""
        result: dict[int, list[int]] = {}
        waiting = [number for number, node in enumerate(self.nodes) if node.size == self.size and node.product]
        result.update((number, []) for number in waiting)
        while waiting:
            number = waiting.pop()
            for user in self.graph.users[number]:
                if self._continues(number, user):
                    if user not in result:
                        result[user] = []
                        waiting.append(user)
                    result[number].append(user)
                    result[user].append(number)
        return result

    def _continues(self, number: int, user: int) -> bool:
        value, following = self.nodes[number], self.nodes[user]
        if value.size == self.size:
            if following.op == "update":
                return len(following.reads) > 1 and following.reads[1] == number and following.size > self.size
            return following.size == self.size and bool(following.names or following.op in ELEMENTWISE)
        if following.op == "slice":
            return following.size == self.size
        return following.size == value.size and bool(
            following.names
            or following.op in ("repeat", "broadcast")
            or (following.op == "update" and number == following.reads[0])
        )

    def _attention(self, values: frozenset[int]) -> tuple[tuple[int, ...], int, int, int] | None:
        """``scores``, ``exponential``, ``weighted`` and ``fused_bytes`` of a group; None if it has no softmax."""
        nodes, users = self.nodes, self.graph.users
        rows = {
            number: row
            for number in sorted(values)
            if nodes[number].op == "exponential" and (row := self._row_size(number, values)) is not None
        }
        # XLA computes the exponential again in every fusion that needs it: another one may be summed
        linear = self._linear(rows, values)
        scores = tuple(dict.fromkeys(number for row in rows for number in self._sources(row, values)))
        readers = sorted({user for number in linear for user in users[number]})
        if not scores or not any(nodes[user].op == "sum" for user in readers):
            return None
        if self._is_returned(linear, scores, values):
            return None
        made = [product for score in scores if (product := nodes[score].product)]
        for user in readers:
            product = nodes[user].product
            if product is None or not any(_sums(product, row, score.batch) for row in rows.values() for score in made):
                continue
            slot = 1 if product.factors[0] in linear else 0
            factors = [product.factors[slot], *(factor for score in made for factor in score.factors)]
            if self._are_activations(factors, batched=all(one.batch > 1 for one in (product, *made))):
                moved = (*made[0].factors, product.factors[slot], user)
                return scores, next(iter(rows)), user, sum(nodes[number].bytes for number in moved)
        return None

    def _row_size(self, exponential: int, values: frozenset[int]) -> int | None:
        """Elements of the row whose maximum is subtracted; None without one, or if it is a running maximum."""
        nodes, back = self.nodes, self.graph.back
        for number in self._upstream(exponential, values):
            if nodes[number].op not in ("subtract", "add"):
                continue
            for operand in nodes[number].reads:
                rows = self.maxima.repeated(operand)
                if rows is None:
                    whole = self._window_row(operand, values)
                    if whole is not None:
                        return None if self.maxima.is_rescaled(values) else whole
                    continue
                reductions, running = self.maxima.of(rows)
                sources = (nodes[reduction].reads[:1] for reduction in reductions)
                if any(one in values for source in sources for one in back(source)):
                    return None if running else self.size // nodes[rows].size
        return None

    def _window_row(self, operand: int, values: frozenset[int]) -> int | None:
        """Elements of the row of the group whose maximum the operand has for each of them; None if it has not."""
        for number in self.graph.back([operand]):
            row = self.nodes[number].row
            if row is not None and any(one in values for one in self.graph.back(self.nodes[number].reads[:1])):
                return row
        return None

    def _upstream(self, number: int, values: frozenset[int]) -> list[int]:
        """Values of the group that a value is computed from, the nearest first, up to products."""
        result = {number: None}
        waiting = [number]
        while waiting and len(result) < _MOST_STEPS:
            node: Node = self.nodes[waiting.pop(0)]
            for source in node.names or node.reads:
                if source in values and source not in result:
                    result[source] = None
                    if not self.nodes[source].product:
                        waiting.append(source)
        return list(result)

    def _sources(self, number: int, values: frozenset[int]) -> list[int]:
        """Products that a value comes from."""
        return [value for value in self._upstream(number, values) if self.nodes[value].product]

    def _linear(self, exponentials: Iterable[int], values: frozenset[int]) -> frozenset[int]:
        """Exponentials, and values that are an exponential times something."""
        linear = set(exponentials)
        waiting = list(linear)
        while waiting:
            for user in self.graph.users[waiting.pop()]:
                node = self.nodes[user]
                if user in values and user not in linear and (node.names or node.op in LINEAR):
                    linear.add(user)
                    waiting.append(user)
        return frozenset(linear)

    def _is_returned(self, linear: frozenset[int], scores: tuple[int, ...], values: frozenset[int]) -> bool:
        """Whether the program's caller gets the probabilities: no fused kernel would return them.

        Gradients of the scores, returned as the gradient of a bias, come from another product too.
        """
        return any(set(self._sources(number, values)) <= set(scores) for number in linear & self.graph.returned)

    def _are_activations(self, factors: Iterable[int], *, batched: bool) -> bool:
        if self.graph.knows_weights:
            return not any(self._reaches(factor, "weight", MOVES) for factor in factors)
        return batched or all(self._reaches(factor, "product", ELEMENTWISE | MOVES) for factor in factors)

    def _reaches(self, number: int, op: OpClass, through: frozenset[OpClass]) -> bool:
        """Whether a value comes from a node of one class, through nodes of others."""
        waiting, seen = [number], set[int]()
        while waiting and len(seen) < _MOST_STEPS:
            for back in self.graph.back([waiting.pop()]):
                node = self.nodes[back]
                if node.op == op:
                    return True
                if back in seen or node.carried:
                    continue
                seen.add(back)
                if node.op in through:
                    waiting.extend(node.reads)
        return False
