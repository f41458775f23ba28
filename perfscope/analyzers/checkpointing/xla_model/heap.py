"""Peak memory of a program's graph in one order: XLA's heap simulation, by live ranges.

The same replay answers two questions. XLA chooses among orders by what its schedulers think: every value counts, so
that what is updated in place, and a loop's state as the body begins, counts twice for a moment. What the program needs
then is what its buffers need: each once, and arguments, constants and results outside of the arena throughout.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from perfscope.analyzers.checkpointing.xla_model.graph import VIEWS
from perfscope.analyzers.checkpointing.xla_model.graph_edit import Values
from perfscope.analyzers.checkpointing.xla_model.orders import Order, all_orders


def planned_order(values: Values) -> tuple[Order, str]:
    """The order in which XLA would run a program, and which of its kinds that is."""
    orders = dict(all_orders(values))
    thought = {name: _Heap(values, order, counts_values=True).peak() for name, order in orders.items()}
    chosen = min(orders, key=lambda name: thought[name])
    return orders[chosen], chosen


def planned_peak(values: Values) -> tuple[int, str]:
    """Bytes at the peak of a program as XLA would order it, and which of its orders that is."""
    order, chosen = planned_order(values)
    return needed_peak(values, order), chosen


def needed_peak(values: Values, order: Order) -> int:
    """Bytes at the peak of a program in an order."""
    return _Heap(values, order, counts_values=False).peak()


def thought_peak(values: Values, order: Order) -> int:
    """Bytes at the peak as XLA's schedulers count them."""
    return _Heap(values, order, counts_values=True).peak()


class _Heap:
    def __init__(self, values: Values, order: Order, *, counts_values: bool) -> None:
        self._values = values
        self._order = order
        self._counts_values = counts_values
        self._times: dict[tuple[str, str], int] = {}
        self._spans: dict[str, tuple[int, int]] = {}
        self._flat: list[tuple[str, str]] = []
        self._lay(values.graph.entry)
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._ranges()
        self._whole = 0
        """Bytes that are held throughout."""
        self._blocks: dict[int, int] = {}
        """Of a value, the first value of its block."""
        self._sizes: dict[int, int] = {}
        self._alone: set[int] = set()
        """Values whose buffer holds nothing else."""
        self._group()

    def _lay(self, name: str) -> None:
        """Positions, what loops run in front of them."""
        start = len(self._flat)
        nodes = self._values.graph.bodies[name].nodes
        for one in self._order[name]:
            if nodes[one].body and nodes[one].body not in self._spans:
                self._lay(nodes[one].body)
            self._times[name, one] = len(self._flat)
            self._flat.append((name, one))
        self._spans[name] = (start, len(self._flat))

    def _ranges(self) -> None:
        """From where it is made to its last reader; what goes into a loop is the body's as soon as that begins."""
        values, graph = self._values, self._values.graph
        for value, (body, name) in enumerate(values.makers):
            if body in self._spans:
                time = self._times[body, name]
                parameter = graph.bodies[body].nodes[name].opcode == "parameter"
                self._starts[value] = self._spans[body][0] if parameter else time
                self._ends[value] = time
        for body, (_, stop) in self._spans.items():
            computation = graph.bodies[body]
            for name, node in computation.nodes.items():
                time = self._times[body, name]
                for part in values.parts[body, name]:
                    self._reach(part, stop if name == computation.root else time)
                if node.opcode in VIEWS:
                    continue
                inside = graph.bodies[node.body] if node.opcode == "while" else None
                begins = time if inside is None else self._times[inside.name, inside.parameter()]
                same = () if inside is None else inside.invariants()
                for operand in node.operands:
                    for at, part in enumerate(values.parts[body, operand]):
                        self._reach(part, time if inside is not None and same[at] else begins)
                    self._reach(values.made.get((body, operand), ()), begins)

    def _reach(self, part: frozenset[int] | list[int] | tuple[int, ...], time: int) -> None:
        for value in part:
            if value in self._ends:
                self._ends[value] = max(self._ends[value], time)

    def _group(self) -> None:
        """Values by block of memory; results that take an argument's memory are in its block."""
        values, graph = self._values, self._values.graph
        entry, main = graph.entry, graph.main
        results = values.parts[entry, main.root]
        arguments = {node.number: name for name, node in main.nodes.items() if node.opcode == "parameter"}
        owner: dict[int, int] = {}
        donated: set[int] = set()
        for at, number in graph.donated.items():
            if at < len(results) and number in arguments:
                for argument in values.parts[entry, arguments[number]][0]:
                    donated.add(argument)
                    for result in results[at]:
                        owner[values.buffer(result)] = values.buffer(argument)
        groups: dict[int, list[int]] = defaultdict(list)
        for value in self._starts:
            block = values.buffer(value)
            groups[owner.get(block, block)].append(value)
        given = {value for name in arguments.values() for part in values.parts[entry, name] for value in part}
        returned = {value for part in results for value in part}
        free: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for block, members in groups.items():
            size = max(values.sizes[value] for value in members)
            outside = any(value in given or value in returned for value in members)
            constant = all(self._opcode(value) == "constant" for value in members)
            if constant or (outside and not self._counts_values):
                self._whole += 0 if self._counts_values else size
                if not constant and not self._counts_values:
                    free[size] += self._unused(members, given, returned)
                continue
            self._sizes[block] = size
            self._blocks.update(dict.fromkeys(members, block))
            if len(members) == 1:
                self._alone.add(members[0])
            self._apart(members, given - donated)
        self._lend(free)

    def _unused(self, members: list[int], given: set[int], returned: set[int]) -> list[tuple[int, int]]:
        """When nothing is in the memory of a donated argument: between its last reader and its result."""
        before = [self._ends[value] for value in members if value not in returned]
        after = [self._starts[value] for value in members if value in returned and value not in given]
        return [(max(before), min(after))] if before and after and max(before) < min(after) else []

    def _lend(self, free: dict[int, list[tuple[int, int]]]) -> None:
        """What has just the size of such an argument is put there."""
        blocks: dict[int, list[int]] = defaultdict(list)
        for value, block in self._blocks.items():
            if self._sizes[block] in free:
                blocks[block].append(value)
        spans = {
            block: (min(self._starts[one] for one in members), max(self._ends[one] for one in members))
            for block, members in blocks.items()
        }
        for block in sorted(spans, key=lambda block: spans[block]):
            start, end = spans[block]
            gaps = free[self._sizes[block]]
            for at, (first, last) in enumerate(gaps):
                if first < start and end < last:
                    gaps[at : at + 1] = [(first, start), (end, last)]
                    for value in blocks[block]:
                        del self._blocks[value]
                        self._alone.discard(value)
                    break

    def _apart(self, members: list[int], lasting: set[int]) -> None:
        """One value of a block follows the other."""
        for value in members:
            if value in lasting:
                self._ends[value] = len(self._flat)
        members.sort(key=lambda value: (self._starts[value], self._ends[value], value))
        for one, other in pairwise(members):
            self._ends[other] = max(self._ends[one], self._ends[other])
            self._ends[one] = min(self._ends[one], self._starts[other])

    def _opcode(self, value: int) -> str:
        body, name = self._values.makers[value]
        return self._values.graph.bodies[body].nodes[name].opcode

    def peak(self) -> int:
        """The highest point of the replay."""
        made: dict[int, list[int]] = defaultdict(list)
        gone: dict[int, list[int]] = defaultdict(list)
        for value in self._blocks:
            made[self._starts[value]].append(value)
            gone[self._ends[value]].append(value)
        for listed in made.values():
            listed.sort(key=lambda value: (self._ends[value], value))
        owners: dict[int, int] = defaultdict(int)
        now = peak = 0
        for time in sorted({*made, *gone}):
            for value in made[time]:
                taken = self._taken_over(value, gone[time])
                if taken is not None:
                    gone[time].remove(taken)
                    self._blocks[value] = self._blocks[taken]
                    continue
                block = self._blocks[value]
                now += self._sizes[block] if self._counts_values or not owners[block] else 0
                owners[block] += 1
            peak = max(peak, now)
            for value in gone[time]:
                block = self._blocks[value]
                owners[block] -= 1
                now -= self._sizes[block] if self._counts_values or not owners[block] else 0
        return peak + self._whole

    def _taken_over(self, value: int, gone: list[int]) -> int | None:
        """The operand of its maker that ends here and whose memory it takes."""
        if value not in self._alone:
            return None
        values = self._values
        body, name = values.makers[value]
        node = values.graph.bodies[body].nodes[name]
        part = values.made[body, name].index(value)
        for at, slot in sorted(node.reuses):
            if at != part:
                continue
            operand = node.operands[slot]
            for number in values.parts[body, operand][0]:
                if values.makers[number] == (body, operand) and number in self._alone and number in gone:
                    return number
        return None
