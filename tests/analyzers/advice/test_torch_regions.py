"""Which modules are regions: copies of a layer, the level of nested containers, single large modules."""

from __future__ import annotations

from perfscope.analyzers.advice.torch_regions import inside, module_calls
from tests.graphs import GraphBuilder


def net(*modules: tuple[str, int], ops: tuple[str, ...] = ("mm", "gelu")) -> GraphBuilder:
    """Modules in order, each running ``ops`` on values with so many rows of 8."""
    g = GraphBuilder()
    x = g.input((4, 8))
    for module, rows in modules:
        for name in ops:
            x = g.op(name, [x], shape=(rows, 8), module=module)
    return g


def names(g: GraphBuilder) -> list[str]:
    return [call.module for call in module_calls(g.graph())]


def test_copies_of_a_layer_are_regions_of_one_group() -> None:
    g = net(*((f"Net.blocks.{index}.mlp", 4) for index in range(3)))
    calls = module_calls(g.graph())
    assert [call.module for call in calls] == ["Net.blocks.0", "Net.blocks.1", "Net.blocks.2"]
    assert {call.group for call in calls} == {"Net.blocks.*"}
    assert [(call.first, call.last) for call in calls] == [(0, 2), (2, 4), (4, 6)]


def test_kinds_of_layers_under_one_container_are_groups_of_their_own() -> None:
    g = GraphBuilder()
    x = g.input((4, 8))
    for index in range(4):
        for name in ("mm", "gelu", "neg")[: 2 + index % 2]:
            x = g.op(name, [x], module=f"Net.blocks.{index}")
    assert {call.group for call in module_calls(g.graph())} == {"Net.blocks.*", "Net.blocks.* (kind 2)"}


def test_of_nested_containers_the_level_that_leaves_least() -> None:
    blocks = [(f"Net.stages.{stage}.{block}", 16) for stage in range(2) for block in range(4)]
    found = net(*blocks, ops=("mm", "gelu", "neg", "relu"))
    assert names(found) == [module for module, _ in blocks]


def test_a_large_module_that_is_no_copy_is_a_region_and_a_small_one_is_not() -> None:
    modules = [("Net.stem", 40), *((f"Net.blocks.{index}", 4) for index in range(2)), ("Net.tail.norm", 1)]
    assert names(net(*modules)) == ["Net.stem", "Net.blocks.0", "Net.blocks.1"]


def test_a_module_that_is_called_twice_has_two_calls() -> None:
    g = net(("Net.blocks.0", 4), ("Net.blocks.1", 4), ("Net", 4), ("Net.blocks.0", 4), ("Net.blocks.1", 4))
    assert names(g) == ["Net.blocks.0", "Net.blocks.1"] * 2


def test_backward_and_repeated_ops_are_in_no_call() -> None:
    g = net(("Net.blocks.0", 4), ("Net.blocks.1", 4))
    g.op("mm", [g.ops[-1].outputs[0]], phase="backward", module="Net.blocks.1")
    g.op("mm", [g.ops[-1].outputs[0]], phase="backward", module="Net.blocks.1", recompute=True)
    assert max(call.last for call in module_calls(g.graph())) == 4


def test_without_modules_there_are_no_regions() -> None:
    assert names(net(("", 4), ("", 4))) == []


def test_a_module_is_inside_itself_and_its_parents_only() -> None:
    assert inside("Net.blocks.1.mlp", "Net.blocks.1")
    assert inside("Net.blocks.1", "Net.blocks.1")
    assert not inside("Net.blocks.10", "Net.blocks.1")
