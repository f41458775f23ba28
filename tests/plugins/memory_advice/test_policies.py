"""Values kept by a policy, and scopes that are layers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perfscope.analyzers.hlo.cost.module import module_cost
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.readers.hlo import proto
from perfscope.plugins.memory_advice.jax_layers import ForwardWork, Layers, forward_work, layer_loops, single_layers
from tests.conftest import REPOSITORY
from tests.hlo_build import hlo_module

PLAIN = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
BATCHED = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"


def work_of(module: HloModule) -> ForwardWork:
    """That of a loop whose body is the entry."""
    layers = Layers(
        name="layers",
        group="layers",
        count=1,
        forward=(0, 1),
        backward=(1, 2),
        input_bytes=0,
        forward_in=frozenset({module.entry}),
        backward_in=frozenset(),
        is_loop=True,
    )
    return forward_work(layers, module_cost(module))


def names(rows: object) -> list[str]:
    return [row.instruction.name for row in rows]  # type: ignore[attr-defined]


def test_products_with_weights_are_kept_and_batched_ones_are_not() -> None:
    module = hlo_module(
        "ENTRY %main () -> bf16[4,4] {\n"
        "  %a = bf16[4,4]{1,0} parameter(0)\n  %b = bf16[4,4,4]{2,1,0} parameter(1)\n"
        f'  %plain = bf16[4,4]{{1,0}} dot(%a, %a), {PLAIN}, metadata={{op_name="jit(f)/jvp(a)/dot_general"}}\n'
        '  %sum = bf16[4,4]{1,0} add(%plain, %a), metadata={op_name="jit(f)/jvp(a)/add"}\n'
        f'  %batched = bf16[4,4,4]{{2,1,0}} dot(%b, %b), {BATCHED}, metadata={{op_name="jit(f)/jvp(b)/dot_general"}}\n'
        f'  ROOT %last = bf16[4,4]{{1,0}} dot(%sum, %a), {PLAIN}, metadata={{op_name="jit(f)/jvp(c)/dot_general"}}\n}}'
    )
    work = work_of(module)
    assert names(work.products) == ["plain"]  # no backward reads the result of the last one
    assert names(work.summed) == ["plain", "last"]
    assert names(work.others) == ["sum", "batched"]


@pytest.mark.parametrize(("path", "is_split"), [("jit(f)/jvp()/dot_general", True), ("jit(f)/jvp()/reduce_sum", False)])
def test_a_product_that_xla_split_is_one_without_a_batch(path: str, is_split: bool) -> None:
    module = hlo_module(
        "%add (x: f32[], y: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n  %y = f32[] parameter(1)\n"
        "  ROOT %s = f32[] add(%x, %y)\n}\n"
        "ENTRY %main () -> f32[4,4] {\n"
        "  %b = f32[2,4,4]{2,1,0} parameter(0)\n  %zero = f32[] constant(0)\n"
        f'  %parts = f32[2,4,4]{{2,1,0}} dot(%b, %b), {BATCHED}, metadata={{op_name="jit(f)/jvp()/dot_general"}}\n'
        "  %whole = f32[4,4]{1,0} reduce(%parts, %zero), dimensions={0}, to_apply=%add, "
        f'metadata={{op_name="{path}"}}\n'
        f"  ROOT %last = f32[4,4]{{1,0}} dot(%whole, %whole), {PLAIN}, "
        'metadata={op_name="jit(f)/jvp(c)/dot_general"}\n}'
    )
    work = work_of(module)
    assert names(work.products) == (["parts", "whole"] if is_split else [])
    assert names(work.summed) == (["whole", "last"] if is_split else ["last"])


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


@pytest.mark.parametrize("scopes", [("block_0", "block_1"), ("layers[0]", "layers[1]"), ("h.0", "h.1"), ("L0", "L1")])
def test_numbered_scopes_with_a_backward_are_layers(scopes: tuple[str, str]) -> None:
    module = unrolled(*scopes)
    found = single_layers(module, Schedule(module))
    assert [one.name for one in found] == list(scopes)
    assert len({one.group for one in found}) == 1
    assert all(one.count == 1 and one.forward[1] <= one.backward[0] for one in found)
    assert found[1].backward[1] == found[0].backward[0], "the backward of the last layer comes first"
    assert [one.input_bytes for one in found] == [0, 4 * 8 * 8]
    assert not layer_loops(module, Schedule(module))


@pytest.mark.parametrize("scopes", [("block_0",), ("encoder", "decoder")])
def test_a_single_number_or_none_is_no_layer(scopes: tuple[str, ...]) -> None:
    module = unrolled(*scopes)
    assert not single_layers(module, Schedule(module))


@pytest.mark.parametrize("index", ["", "x", "9" * 5_000])
def test_parts_of_tuples_without_a_number_are_no_error(index: str) -> None:
    """As in a text whose attribute was changed."""
    (module,) = proto.read(REPOSITORY / "fixtures/h100-programs/attention-naive-scan-small-none.hlo.pb.xz").hlo
    assert layer_loops(module, Schedule(module))
    computations = {}
    for name, computation in module.computations.items():
        damaged = tuple(
            replace(one, attributes={"index": index}) if one.opcode == "get-tuple-element" else one
            for one in computation.instructions
        )
        by_name = {one.name: one for one in damaged}
        computations[name] = replace(computation, instructions=damaged, by_name=by_name)
    damaged_module = replace(module, computations=computations)
    layer_loops(damaged_module, Schedule(damaged_module))
    single_layers(damaged_module, Schedule(damaged_module))
