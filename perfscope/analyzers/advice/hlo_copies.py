"""Copies of arguments that a program updates in place: XLA makes them where the order it chose reads one afterwards."""

from __future__ import annotations

from perfscope.analyzers.advice.hlo_graph import Graph, Node
from perfscope.analyzers.advice.hlo_orders import Order

_VIEWS = ("bitcast",)


def without_copies(graph: Graph) -> None:
    """What is a copy of a donated argument is the argument: an order is chosen before there are copies."""
    main = graph.main
    given = {node.name: node.number for node in main.nodes.values() if node.opcode == "parameter"}
    donated = set(graph.donated.values())
    for node in list(main.nodes.values()):
        if node.opcode == "copy" and given.get(main.behind(node.operands[0])) in donated:
            main.change(node.name, opcode="bitcast", updates=(), reuses=())


def with_copies(graph: Graph, order: Order) -> bool:
    """Puts a copy in front of the first that reads an argument which is read again when it has been updated.

    The order is changed in place; False if there is none.
    """
    main, running = graph.main, order[graph.entry]
    positions = {name: at for at, name in enumerate(running)}
    given = {node.number: node.name for node in main.nodes.values() if node.opcode == "parameter"}
    results = main.nodes[main.root].operands
    users = main.users()
    found = False
    for at, number in graph.donated.items():
        if at >= len(results) or number not in given:
            continue
        maker = main.behind(results[at], ("bitcast", "get-tuple-element"))
        readers = _readers(graph, users, given[number])
        late = [name for name, _ in readers if positions[name] > positions[maker] and name != main.root]
        if maker == given[number] or not late:
            continue
        found = True
        copy = Node(name=f"kept.{given[number]}", opcode="copy", operands=(given[number],),
                    sizes=main.nodes[given[number]].sizes)  # fmt: skip
        main.add(copy)
        first = min(positions[name] for name, _ in readers)
        for _, through in readers:
            for view in through:
                main.change(view, operands=tuple(copy.name if one == given[number] else one for one in
                                                 main.nodes[view].operands))  # fmt: skip
        running.insert(first, copy.name)
        positions = {name: place for place, name in enumerate(running)}
        users = main.users()
    return found


def _readers(graph: Graph, users: dict[str, list[str]], name: str) -> list[tuple[str, tuple[str, ...]]]:
    """Who reads an argument, with those that name it: themselves, or what they see it through."""
    nodes = graph.main.nodes
    found: list[tuple[str, tuple[str, ...]]] = []
    for user in users[name]:
        waiting, seen = [user], {user}
        while waiting:
            one = waiting.pop()
            if nodes[one].opcode in _VIEWS:
                for other in users[one]:
                    if other not in seen:
                        seen.add(other)
                        waiting.append(other)
            else:
                found.append((one, (user,)))
    return found
