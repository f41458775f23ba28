"""Copies of donated arguments: made where the chosen order reads an argument that has been updated in place."""

from __future__ import annotations

from perfscope.analyzers.advice.hlo_copies import with_copies, without_copies
from perfscope.analyzers.advice.hlo_graph import Body, Graph, Node
from perfscope.analyzers.advice.hlo_graph_values import Values
from perfscope.analyzers.advice.hlo_heap import needed_peak

SIZE = 1000


def program(*, copied: bool) -> Graph:
    """Weights that a product reads, and that an update takes and gives back in their place."""
    read = "copy" if copied else "weights"
    nodes = [
        Node(name="weights", opcode="parameter", sizes=(SIZE,), number=0),
        Node(name="copy", opcode="copy", operands=("weights",), sizes=(SIZE,)),
        Node(name="product", opcode="kernel", operands=(read,), sizes=(10,)),
        Node(name="update", opcode="kernel", operands=("weights",), sizes=(SIZE,), reuses=((0, 0),)),
        Node(name="root", opcode="tuple", operands=("update", "product"), sizes=(SIZE, 10), is_tuple=True),
    ]
    kept = {one.name: one for one in nodes if copied or one.name != "copy"}
    return Graph(bodies={"main": Body(name="main", nodes=kept, root="root")}, entry="main", donated={0: 0})


def test_an_argument_that_is_read_behind_its_update_is_copied_in_front_of_it() -> None:
    graph = program(copied=False)
    order = {"main": ["weights", "update", "product", "root"]}
    assert with_copies(graph, order)
    assert order["main"] == ["weights", "kept.weights", "update", "product", "root"]
    assert graph.main.nodes["product"].operands == ("kept.weights",)
    assert needed_peak(Values(graph), order) == 2 * SIZE + 10


def test_an_argument_that_is_read_first_needs_no_copy() -> None:
    graph = program(copied=False)
    order = {"main": ["weights", "product", "update", "root"]}
    assert not with_copies(graph, order)
    assert order == {"main": ["weights", "product", "update", "root"]}


def test_copies_that_the_program_has_are_taken_out_first() -> None:
    graph = program(copied=True)
    without_copies(graph)
    assert graph.main.nodes["copy"].opcode == "bitcast"
    assert not with_copies(graph, {"main": ["weights", "copy", "product", "update", "root"]})


def test_a_copy_of_an_argument_that_is_not_donated_stays() -> None:
    graph = program(copied=True)
    graph.donated = {}
    without_copies(graph)
    assert graph.main.nodes["copy"].opcode == "copy"
