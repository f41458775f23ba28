from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.devices.target import Target
from perfscope.analyzers.devices.tiles import Sizes, padded_share, wave_share
from perfscope.analyzers.hlo.collective import collectives_of
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.predict.assumptions import factors_for
from perfscope.analyzers.predict.collective_time import CollectiveRange, Exchange, collective_range, exchange_range
from perfscope.analyzers.predict.kernel_time import sizes_of
from tests.hlo_build import GPU, hlo_module
from tests.predict.targets import target

MIB = 1 << 20
GROUPS_8 = "replica_groups={{0,1,2,3,4,5,6,7}}"
GROUPS_16 = "replica_groups={{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}}"
PARTS = {
    "all-gather": ("f32[2097152]", "f32[16777216]", "dimensions={0}"),
    "all-reduce": ("f32[16777216]", "f32[16777216]", "to_apply=%add"),
    "all-to-all": ("f32[16777216]", "f32[16777216]", "dimensions={0}"),
    "collective-permute": ("f32[16777216]", "f32[16777216]", ""),
    "reduce-scatter": ("f32[16777216]", "f32[2097152]", "dimensions={0}, to_apply=%add"),
}
"""Operand, result and attributes of a collective of 64 MiB among 8."""

ADD = """\
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}
"""


def modelled_range(kind: str, on: Target, groups: str = GROUPS_8) -> CollectiveRange:
    operand, result, more = PARTS[kind]
    said = ", ".join(part for part in (groups, more) if part)
    module = hlo_module(
        f"{ADD}ENTRY %main (p: {operand}) -> {result} {{\n  %p = {operand} parameter(0)\n"
        f"  ROOT %c = {result} {kind}(%p), channel_id=1, {said}, {GPU}\n}}\n"
    )
    (found,) = collectives_of(module)
    return collective_range(found, on, factors_for(on))


H100 = target("H100 SXM", (1, 8))


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        ("all-gather", 64 * MIB * 7 / 8 / 450e9),
        ("reduce-scatter", 64 * MIB * 7 / 8 / 450e9),
        ("all-to-all", 64 * MIB * 7 / 8 / 450e9),
        ("all-reduce", 64 * MIB * 9 / 8 / 450e9),  # the switch adds up
    ],
)
def test_low_ends_in_a_node_are_those_of_the_bus_bandwidth(kind: str, seconds: float) -> None:
    found = modelled_range(kind, H100)
    steps = 1 if kind == "all-to-all" else 3  # a tree of 8
    assert found.time.low == int(seconds * 1e9 + 1_000 + steps * 600)
    assert found.time.high > found.time.low
    assert (found.devices, found.nodes, found.known) == (8, 1, True)


def test_without_reduction_in_the_switch_an_all_reduce_is_a_ring() -> None:
    found = modelled_range("all-reduce", target("A100 SXM 80GB", (1, 8)))
    assert found.time.low == int(2 * 64 * MIB * 7 / 8 / 300e9 * 1e9 + 1_000 + 3 * 600)


@pytest.mark.parametrize(("size", "share"), [(MIB, 0.5), (64 * MIB, 0.8), (256 * MIB, 1.0)])
def test_small_messages_reach_less_of_the_links_at_the_high_end(size: int, share: float) -> None:
    """The share is NCCL's own for that size; the latency of steps is the same for all."""
    exchange, steps = Exchange(kind="all-gather", bytes=size, group=tuple(range(8))), 6
    found = exchange_range(exchange, H100, factors_for(H100))
    sent = size * 7 / 8 / (0.7 * 450e9 * share) * 1e9
    assert found.time.high == pytest.approx(sent + 8_400 + steps * 3_400, abs=2)


def test_between_nodes_the_network_counts() -> None:
    found = modelled_range("all-reduce", target("H100 SXM", (2, 8)), GROUPS_16)
    # each node has 8 cards of 50 GB/s; a half of the data leaves it, there and back
    assert found.time.low == int(2 * 0.5 * 64 * MIB / 400e9 * 1e9 + 1_000 + 3 * 600 + 2_700)
    assert found.time.high > 2 * 15 / 16 * 64 * MIB / (0.7 * 400e9) * 1e9
    assert (found.devices, found.nodes) == (16, 2)
    inside = modelled_range(
        "all-reduce", target("H100 SXM", (2, 8)), "replica_groups={{0,1,2,3,4,5,6,7},{8,9,10,11,12,13,14,15}}"
    )
    assert (inside.devices, inside.nodes) == (8, 1)
    assert inside.time.high < found.time.high


def test_a_pair_across_nodes_has_its_own_card() -> None:
    on = target("H100 SXM", (2, 8))
    near = modelled_range("collective-permute", on, "source_target_pairs={{0,1},{8,9}}")
    far = modelled_range("collective-permute", on, "source_target_pairs={{0,1},{7,8}}")
    assert near.time.low == int(64 * MIB / 450e9 * 1e9 + 1_000 + 600)
    assert far.time.low == int(64 * MIB / 50e9 * 1e9 + 1_000 + 2_700)


def test_links_that_nobody_knows_are_said() -> None:
    assert not modelled_range("all-gather", target("L40S", (1, 8))).known


def test_small_messages_cost_their_steps() -> None:
    module = hlo_module(
        f"{ADD}ENTRY %main (p: f32[2]) -> f32[2] {{\n  %p = f32[2] parameter(0)\n"
        f"  ROOT %c = f32[2] all-reduce(%p), channel_id=1, {GROUPS_8}, to_apply=%add, {GPU}\n}}\n"
    )
    (one,) = collectives_of(module)
    found = collective_range(one, H100, factors_for(H100))
    assert found.time.low == 1_000 + 3 * 600  # a tree of 8
    assert found.time.high >= 8_400 + 12 * 3_400


@pytest.mark.parametrize(
    ("kind", "topology", "low", "high"),
    [
        # 2x4 of v5e: both axes open, 50 GB/s a link and direction
        ("all-gather", (2, 4), 64 * MIB * 7 / 8 / 100e9, 64 * MIB * 7 / 8 / (0.8 * 50e9)),
        ("all-reduce", (2, 4), 2 * 64 * MIB * 7 / 8 / 100e9, 2 * 64 * MIB * 7 / 8 / (0.8 * 50e9)),
    ],
)
def test_a_slice_of_v5e(kind: str, topology: tuple[int, ...], low: float, high: float) -> None:
    found = modelled_range(kind, target("TPU v5e", topology))
    assert found.time.low == int(low * 1e9)
    assert high * 1e9 < found.time.high < high * 1e9 + 5_000 + 1_000 * 8 + 1
    assert found.algorithm == "2x4 of a 2x4 torus"


def test_an_axis_of_a_cube_closes_and_carries_both_directions() -> None:
    on = target("TPU v5p", (4, 4, 4))
    module = hlo_module(
        f"{ADD}ENTRY %main (p: f32[4194304]) -> f32[16777216] {{\n  %p = f32[4194304] parameter(0)\n"
        f"  ROOT %c = f32[16777216] all-gather(%p), channel_id=1, dimensions={{0}}, "
        f"replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}\n}}\n"
    )
    (one,) = collectives_of(module)
    found = collective_range(one, on, factors_for(on))
    assert found.time.low == int(64 * MIB * 3 / 4 / 200e9 * 1e9)  # two of 100 GB/s
    assert found.algorithm == "4 of a 4x4x4 torus"


def sizes(rows: int, columns: int, inner: int = 4096, batch: int = 1) -> Sizes:
    return Sizes(batch=batch, rows=rows, columns=columns, inner=inner)


@pytest.mark.parametrize(
    ("one", "share"),
    [
        (sizes(128 * 12, 128 * 11), 1.0),  # 132 tiles: one wave
        (sizes(128 * 19, 128 * 7), 133 / 264),  # one tile more: two waves
        (sizes(128, 128, batch=66), 0.5),
        (sizes(128 * 12, 128 * 11 - 64), 1 - 64 / (128 * 11)),  # half a tile is padding
    ],
)
def test_waves_and_edges(one: Sizes, share: float) -> None:
    assert wave_share(one, tile=(128, 128), cores=132, split=0) == pytest.approx(share)


def test_a_long_contraction_is_divided_among_idle_cores() -> None:
    long = sizes(256, 256, inner=65536)
    assert wave_share(long, tile=(128, 128), cores=132, split=0) == pytest.approx(4 / 132)
    assert wave_share(long, tile=(128, 128), cores=132, split=1024) == pytest.approx(1.0)


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 100_000), st.integers(1, 64), st.integers(1, 304))
def test_shares_are_shares(rows: int, columns: int, inner: int, batch: int, cores: int) -> None:
    one = sizes(rows, columns, inner, batch)
    for split in (0, 1024):
        assert 0 < wave_share(one, tile=(128, 256), cores=cores, split=split) <= 1
    assert 0 < padded_share(one, 128) <= 1


def test_padding_of_a_systolic_unit() -> None:
    assert padded_share(sizes(8, 128, 256), 128) == 1
    assert padded_share(sizes(8, 64, 256), 128) == pytest.approx(0.5)
    assert padded_share(sizes(8, 128, 128), 256) == pytest.approx(0.25)


def entry(text: str) -> tuple[HloModule, Sizes | None]:
    module = hlo_module(text)
    computation = module.entry_computation()
    return module, sizes_of(module, computation, computation.root)


def test_sizes_of_products_wherever_they_stand() -> None:
    dot = "dot(%a, %b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    _, plain = entry(
        "ENTRY %main (a: bf16[4,64,32], b: bf16[4,32,16]) -> bf16[4,64,16] {\n"
        "  %a = bf16[4,64,32] parameter(0)\n  %b = bf16[4,32,16] parameter(1)\n"
        f"  ROOT %d = bf16[4,64,16] {dot}\n}}\n"
    )
    _, fused = entry(
        "%body (a: bf16[4,64,32], b: bf16[4,32,16]) -> bf16[4,64,16] {\n"
        "  %a = bf16[4,64,32] parameter(0)\n  %b = bf16[4,32,16] parameter(1)\n"
        f"  ROOT %d = bf16[4,64,16] {dot}\n}}\n"
        "ENTRY %main (p: bf16[4,64,32], q: bf16[4,32,16]) -> bf16[4,64,16] {\n"
        "  %p = bf16[4,64,32] parameter(0)\n  %q = bf16[4,32,16] parameter(1)\n"
        "  ROOT %f = bf16[4,64,16] fusion(%p, %q), kind=kCustom, calls=%body\n}\n"
    )
    assert plain == fused == Sizes(batch=4, rows=64, columns=16, inner=32)
    _, none = entry(
        "ENTRY %main (a: f32[8]) -> f32[8] {\n  %a = f32[8] parameter(0)\n  ROOT %n = f32[8] negate(%a)\n}\n"
    )
    assert none is None
