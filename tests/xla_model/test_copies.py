"""Copies of donated arguments: there while an order is chosen, and gone where that order does not need them."""

from __future__ import annotations

from perfscope.analyzers.checkpointing.xla_model.copies import with_copies, without_copies, without_needless
from perfscope.analyzers.checkpointing.xla_model.graph import Body, Graph, Node
from perfscope.analyzers.checkpointing.xla_model.graph_edit import POINTER, Values
from perfscope.analyzers.checkpointing.xla_model.heap import needed_peak
from perfscope.analyzers.checkpointing.xla_model.orders import all_orders

SIZE = 1000
COPY = "kept.weights"


def program(*, copied: bool = False, follows: bool = False) -> Graph:
    """Weights that a product reads, and that an update takes and gives back in their place.

    ``copied``: the product reads a copy. ``follows``: the update needs the product.
    """
    read = "copy" if copied else "weights"
    needs = ("weights", "product") if follows else ("weights",)
    nodes = [
        Node(name="weights", opcode="parameter", sizes=(SIZE,), number=0),
        Node(name="copy", opcode="copy", operands=("weights",), sizes=(SIZE,)),
        Node(name="product", opcode="kernel", operands=(read,), sizes=(10,)),
        Node(name="update", opcode="kernel", operands=needs, sizes=(SIZE,), reuses=((0, 0),)),
        Node(name="root", opcode="tuple", operands=("update", "product"), sizes=(SIZE, 10), is_tuple=True),
    ]
    kept = {one.name: one for one in nodes if copied or one.name != "copy"}
    return Graph(bodies={"main": Body(name="main", nodes=kept, root="root")}, entry="main", donated={0: 0})


def test_an_argument_that_may_be_read_behind_its_update_is_copied_for_all_that_read_it() -> None:
    graph = program()
    assert with_copies(graph) == (COPY,)
    assert graph.main.nodes["product"].operands == (COPY,)
    assert graph.main.nodes["update"].operands == (COPY,)


def test_an_argument_whose_update_needs_all_that_read_it_is_not_copied() -> None:
    graph = program(follows=True)
    assert with_copies(graph) == ()
    assert set(graph.main.nodes) == {"weights", "product", "update", "root"}


def test_a_copy_stays_where_the_order_reads_the_argument_behind_its_update() -> None:
    graph = program()
    copies, order = with_copies(graph), {"main": ["weights", COPY, "update", "product", "root"]}
    without_needless(graph, copies, order)
    assert graph.main.nodes[COPY].opcode == "copy"
    assert needed_peak(Values(graph), order) == 2 * SIZE + 10


def test_a_copy_goes_where_the_order_reads_the_argument_first() -> None:
    graph = program()
    copies, order = with_copies(graph), {"main": ["weights", COPY, "product", "update", "root"]}
    without_needless(graph, copies, order)
    assert graph.main.nodes[COPY].opcode == "bitcast"
    assert needed_peak(Values(graph), order) == SIZE + 10 + 2 * POINTER  # the result's table


def test_what_a_loop_reads_through_its_tuple_counts() -> None:
    graph = program()
    state = Node(name="state", opcode="tuple", operands=("weights",), sizes=(SIZE,), is_tuple=True)
    graph.main.add(state)
    graph.main.change("product", operands=("state",))
    copies = with_copies(graph)
    assert copies == (COPY,)
    order = {"main": ["weights", COPY, "state", "update", "product", "root"]}
    without_needless(graph, copies, order)
    assert graph.main.nodes[COPY].opcode == "copy"


def test_a_list_scheduler_runs_an_update_where_the_copy_of_its_argument_is_freed() -> None:
    """The copy is there for the product; the update lets go of it, and runs before what only takes memory."""
    graph = program()
    graph.main.add(Node(name="gradient", opcode="kernel", sizes=(10,)))
    graph.main.change("update", operands=("weights", "gradient"))
    graph.main.add(Node(name="large", opcode="kernel", operands=("product",), sizes=(SIZE // 2,)))
    graph.main.change("root", operands=("update", "large"))
    assert order_of(graph).index("update") > order_of(graph).index("large")
    with_copies(graph)
    assert order_of(graph).index("update") < order_of(graph).index("large")


def order_of(graph: Graph) -> list[str]:
    return dict(all_orders(Values(graph)))["list"]["main"]


def test_copies_that_the_program_has_are_taken_out_first() -> None:
    graph = program(copied=True)
    without_copies(graph)
    assert graph.main.nodes["copy"].opcode == "bitcast"


def test_a_copy_of_an_argument_that_is_not_donated_stays() -> None:
    graph = program(copied=True)
    graph.donated = {}
    without_copies(graph)
    assert graph.main.nodes["copy"].opcode == "copy"
