"""Copies of arguments that a program updates in place.

XLA copies a donated argument where something reads it that need not run before its update, and orders the program with
the copies in it. A copy that is not needed in the order it chose is taken out afterwards. (Found in the orders of
programs compiled for an H100: only with the copies, also those that are not in the program any more, does a list
scheduler run the kernels of the optimizer where XLA runs them.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from perfscope.analyzers.checkpointing.xla_model.graph import Graph, Node
from perfscope.analyzers.checkpointing.xla_model.orders import Order

_VIEWS = ("bitcast", "tuple")
"""Through a tuple a loop reads its parts."""


def without_copies(graph: Graph) -> None:
    """What is a copy of a donated argument is the argument: an order is chosen before it is known which are needed."""
    main = graph.main
    given = {node.name: node.number for node in main.nodes.values() if node.opcode == "parameter"}
    donated = set(graph.donated.values())
    for node in list(main.nodes.values()):
        if node.opcode == "copy" and given.get(main.behind(node.operands[0])) in donated:
            main.change(node.name, opcode="bitcast", updates=(), reuses=())


def with_copies(graph: Graph) -> tuple[str, ...]:
    """Copies each donated argument that something reads which need not run before its update. Their names.

    Everyone reads the copy then. Linear in the entry's instructions for each argument.
    """
    main, users = graph.main, graph.main.users()
    added = []
    for argument, maker in _updated(graph):
        before = _needed_by(graph, maker)
        if all(name in before for name in _readers(graph, users, argument)):
            continue
        name = main.add(Node(name=f"kept.{argument}", opcode="copy", operands=(argument,),
                             sizes=main.nodes[argument].sizes))  # fmt: skip
        for user in users[argument]:
            operands = main.nodes[user].operands
            main.change(user, operands=tuple(name if one == argument else one for one in operands))
        added.append(name)
    return tuple(added)


def without_needless(graph: Graph, copies: Sequence[str], order: Order) -> None:
    """Takes out those of ``copies`` whose argument nobody reads behind its update in this order."""
    main = graph.main
    positions = {name: at for at, name in enumerate(order[graph.entry])}
    users = main.users()
    makers = dict(_updated(graph))
    for name in copies:
        updated = positions[makers[main.nodes[name].operands[0]]]
        if all(positions[reader] <= updated for reader in _readers(graph, users, name)):
            main.change(name, opcode="bitcast")


def _updated(graph: Graph) -> Iterator[tuple[str, str]]:
    """Donated arguments, and what makes the result that takes the memory of each."""
    main = graph.main
    given = {node.number: node.name for node in main.nodes.values() if node.opcode == "parameter"}
    results = main.nodes[main.root].operands
    for at, number in graph.donated.items():
        if at < len(results) and number in given:
            maker = main.behind(results[at], ("bitcast", "get-tuple-element"))
            if maker != given[number]:
                yield given[number], maker


def _needed_by(graph: Graph, name: str) -> frozenset[str]:
    """An instruction, and all that must run before it."""
    nodes = graph.main.nodes
    waiting, seen = [name], {name}
    while waiting:
        one = nodes[waiting.pop()]
        for other in (*one.operands, *one.after):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return frozenset(seen)


def _readers(graph: Graph, users: dict[str, list[str]], name: str) -> list[str]:
    """Who reads a value, through views of it. Not the result of the program, which holds it."""
    main = graph.main
    waiting, seen, found = [name], {name}, []
    while waiting:
        for user in users[waiting.pop()]:
            if user in seen or user == main.root:
                continue
            seen.add(user)
            if main.nodes[user].opcode in _VIEWS:
                waiting.append(user)
            else:
                found.append(user)
    return found
