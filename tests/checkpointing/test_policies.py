"""What a policy keeps, and what scopes are layers."""

from __future__ import annotations

import pytest

from perfscope.analyzers.checkpointing.jax_layers.layers import layer_loops, reached
from perfscope.analyzers.checkpointing.jax_layers.recompute import nothing, unbatched_products
from perfscope.analyzers.checkpointing.jax_layers.unrolled import single_layers
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.thunks import Schedule
from tests.hlo_build import hlo_module

PLAIN = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
BATCHED = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"


def kept(module: HloModule, name: str) -> bool:
    flow = Flow(module)
    return unbatched_products(flow)(flow.numbers[module.entry, name])


def test_products_with_weights_are_kept_and_batched_ones_are_not() -> None:
    module = hlo_module(
        "ENTRY %main () -> bf16[4,4,4] {\n"
        "  %a = bf16[4,4]{1,0} parameter(0)\n  %b = bf16[4,4,4]{2,1,0} parameter(1)\n"
        f"  %plain = bf16[4,4]{{1,0}} dot(%a, %a), {PLAIN}\n"
        "  %sum = bf16[4,4]{1,0} add(%plain, %a)\n"
        f"  ROOT %batched = bf16[4,4,4]{{2,1,0}} dot(%b, %b), {BATCHED}\n}}"
    )
    assert kept(module, "plain")
    assert not kept(module, "batched")
    assert not kept(module, "sum")
    assert not nothing(0)


@pytest.mark.parametrize(("path", "is_one"), [("jit(f)/dot_general", True), ("jit(f)/reduce_sum", False)])
def test_a_product_that_xla_split_is_one_without_a_batch(path: str, is_one: bool) -> None:
    module = hlo_module(
        "%add (x: f32[], y: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n"
        "  ROOT %s = f32[] add(%x, %y)\n}\n"
        "ENTRY %main () -> f32[4,4] {\n"
        "  %b = f32[2,4,4]{2,1,0} parameter(0)\n  %zero = f32[] constant(0)\n"
        f'  %parts = f32[2,4,4]{{2,1,0}} dot(%b, %b), {BATCHED}, metadata={{op_name="jit(f)/dot_general"}}\n'
        "  ROOT %whole = f32[4,4]{1,0} reduce(%parts, %zero), dimensions={0}, to_apply=%add, "
        f'metadata={{op_name="{path}"}}\n}}'
    )
    assert kept(module, "whole") is is_one
    assert not kept(module, "parts")


def unrolled(*scopes: str) -> HloModule:
    """Each scope multiplies what it gets by a weight, and its backward multiplies by what it made."""
    lines, x = ["  %w = f32[8,8]{1,0} parameter(0)\n"], "w"
    for number, scope in enumerate(scopes):
        meta = f'metadata={{op_name="jit(f)/jvp({scope})/dot_general"}}'
        lines.append(f"  %y{number} = f32[8,8]{{1,0}} dot(%{x}, %w), {PLAIN}, {meta}\n")
        lines.append(f"  %z{number} = f32[8,8]{{1,0}} exponential(%y{number}), {meta}\n")
        x = f"z{number}"
    for number, scope in reversed(list(enumerate(scopes))):
        meta = f'metadata={{op_name="jit(f)/transpose(jvp({scope}))/mul"}}'
        lines.append(f"  %g{number} = f32[8,8]{{1,0}} multiply(%{x}, %y{number}), {meta}\n")
        x = f"g{number}"
    lines.append(f"  ROOT %out = f32[8,8]{{1,0}} negate(%{x})\n")
    return hlo_module(f"ENTRY %main () -> f32[8,8] {{\n{''.join(lines)}}}")


@pytest.mark.parametrize("names", [("block_0", "block_1"), ("layers[0]", "layers[1]"), ("h.0", "h.1"), ("L0", "L1")])
def test_numbered_scopes_with_a_backward_are_layers(names: tuple[str, str]) -> None:
    module = unrolled(*names)
    found = single_layers(Flow(module), Schedule(module))
    assert [one.name for one in found] == list(names)
    assert len({one.group for one in found}) == 1
    assert all(one.count == 1 and one.forward[1] <= one.backward[0] for one in found)
    assert not layer_loops(Flow(module), Schedule(module))


@pytest.mark.parametrize("names", [("block_0",), ("encoder", "decoder")])
def test_a_single_number_or_none_is_no_layer(names: tuple[str, ...]) -> None:
    module = unrolled(*names)
    assert not single_layers(Flow(module), Schedule(module))


def test_what_a_layer_keeps_is_what_only_its_own_backward_reads() -> None:
    module = unrolled("block_0", "block_1")
    flow = Flow(module)
    first, second = single_layers(flow, Schedule(module))
    assert [flow.values[one.number].instruction.name for one in first.kept] == ["y0"]
    assert [flow.values[one.number].instruction.name for one in second.kept] == ["y1", "z1"]  # g1 reads both


def test_computations_of_loops_are_told_from_the_others() -> None:
    module = hlo_module(
        "%body (s: (s32[])) -> (s32[]) {\n  %s = (s32[]) parameter(0)\n  %i = s32[] get-tuple-element(%s), index=0\n"
        "  ROOT %t = (s32[]) tuple(%i)\n}\n"
        "%condition (s2: (s32[])) -> pred[] {\n  %s2 = (s32[]) parameter(0)\n  ROOT %p = pred[] constant(false)\n}\n"
        "ENTRY %main () -> (s32[]) {\n  %zero = s32[] constant(0)\n  %start = (s32[]) tuple(%zero)\n"
        "  ROOT %loop = (s32[]) while(%start), condition=%condition, body=%body\n}"
    )
    assert reached(module, module.entry) == {module.entry, "body", "condition"}
    assert reached(module, module.entry, loops_only=True) == {"body", "condition"}
