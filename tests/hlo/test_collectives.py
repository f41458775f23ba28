"""Bytes on the wire: the factors of nccl-tests, groups in every spelling, and each collective counted once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.hlo.collective import GroupReader
from tests.hlo.modules import ADD_COMPUTATION, cost, op_cost

GROUPS = "replica_groups={{0,1,2,3},{4,5,6,7}}"


@pytest.mark.parametrize(
    ("parameter", "op", "sent"),
    [
        # n = 4: all-reduce 2*3/4 of 4,096 B; gather 3/4 of the 16,384 B that come out; scatter and exchange 3/4 of
        # what goes in; permute and broadcast all of it
        ("f32[1024]", f"f32[1024] all-reduce(%p0), {GROUPS}, to_apply=%add", 6144),
        ("f32[1024]", f"f32[4096] all-gather(%p0), {GROUPS}, dimensions={{0}}", 12288),
        ("f32[4096]", f"f32[1024] reduce-scatter(%p0), {GROUPS}, dimensions={{0}}, to_apply=%add", 12288),
        ("f32[1024]", f"f32[1024] all-to-all(%p0), {GROUPS}, dimensions={{0}}", 3072),
        ("f32[1024]", "f32[1024] collective-permute(%p0), source_target_pairs={{0,1},{1,0}}", 4096),
        ("f32[1024]", f"f32[1024] collective-broadcast(%p0), {GROUPS}", 4096),
        ("f32[1024]", "f32[1024] all-reduce(%p0), replica_groups=[2,4]<=[8], to_apply=%add", 6144),
        ("f32[1024]", "f32[1024] all-reduce(%p0), replica_groups=mesh['a'=2,'b'=4] {'b'}, to_apply=%add", 6144),
        ("f32[1024]", "f32[1024] all-reduce(%p0), replica_groups={{0},{1}}, to_apply=%add", 0),
        # a device of the larger group sends the most: 2*2/3 of 4,096, rounded up
        ("f32[1024]", "f32[1024] all-reduce(%p0), replica_groups={{0,1,2},{3}}, to_apply=%add", 5462),
    ],
)
def test_factor(parameter: str, op: str, sent: int):
    assert op_cost([parameter], op, ADD_COMPUTATION if "to_apply" in op else "").once.wire_bytes == sent


@pytest.mark.parametrize(
    ("attributes", "devices"),
    [
        ("", 2),  # across replicas
        ("channel_id=1, ", 8),  # across partitions
        ("channel_id=1, use_global_device_ids=true, ", 16),
    ],
)
def test_without_groups_all_devices_take_part(attributes: str, devices: int):
    found = cost(
        f"""HloModule m, is_scheduled=true, num_partitions=8, replica_count=2
{ADD_COMPUTATION}
ENTRY %main (x: f32[1600]) -> f32[1600] {{
  %x = f32[1600] parameter(0)
  ROOT %r = f32[1600] all-reduce(%x), {attributes}to_apply=%add
}}
"""
    )
    assert found.total.wire_bytes == 2 * (devices - 1) * 6400 // devices


@pytest.mark.parametrize(
    ("start", "done", "sent", "written"),
    [
        ("f32[1024] all-reduce-start(%x), GROUPS, to_apply=%add", "f32[1024] all-reduce-done", 6144, 4096),
        (
            "(f32[1024], f32[4096]) all-gather-start(%x), GROUPS, dimensions={0}",
            "f32[4096] all-gather-done", 12288, 16384,
        ),
        (
            "((f32[1024]), f32[256]) reduce-scatter-start(%x), GROUPS, dimensions={0}, to_apply=%add",
            "f32[256] reduce-scatter-done", 3072, 1024,
        ),
        (
            "((f32[1024]), f32[1024]) all-to-all-start(%x), GROUPS, dimensions={0}",
            "f32[1024] all-to-all-done", 3072, 4096,
        ),
        (
            "(f32[1024], f32[1024], u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1}}",
            "f32[1024] collective-permute-done", 4096, 4096,
        ),
        ("((f32[1024]), f32[1024], s32[]) async-start(%x), calls=%apart", "f32[1024] async-done", 3072, 4096),
    ],
)  # fmt: skip
def test_start_and_done_are_one_collective(start: str, done: str, sent: int, written: int):
    apart = """
%apart (x: f32[1024]) -> f32[1024] {
  %x = f32[1024] parameter(0)
  ROOT %all = f32[1024] all-to-all(%x), GROUPS, dimensions={0}
}
"""
    found = cost(
        f"""{ADD_COMPUTATION}{apart if "apart" in start else ""}
ENTRY %main (x: f32[1024]) -> f32[1] {{
  %x = f32[1024] parameter(0)
  %s = {start}
  ROOT %d = {done}(%s)
}}
""".replace("GROUPS", GROUPS)
    )
    assert found.total.wire_bytes == sent
    assert (found.total.bytes_read, found.total.bytes_written) == (4096, written)
    assert found.by_name["main", "d"].once.bytes == 0
    assert found.by_name["main", "s"].place == "launched"
    assert sum(row.total.wire_bytes for row in found.launched) == sent
    assert sum(part.wire_bytes for part in found.phases.values()) == sent


def test_copy_start_reads_its_operand_and_writes_its_destination():
    row = op_cost(["f32[1024]"], "(f32[1024], f32[1024], u32[]) copy-start(%p0)")
    assert (row.once.bytes_read, row.once.bytes_written) == (4096, 4096)
    to_host = op_cost(["f32[1024]"], "(f32[1024]{0:S(5)}, f32[1024], u32[]) copy-start(%p0)")
    assert (to_host.once.bytes_read, to_host.once.bytes_written, to_host.once.host_bytes) == (4096, 0, 4096)
    assert row.once.host_bytes == 0


def test_a_collective_that_runs_beside_tpu_fusions_counts_where_it_starts():
    body = """
%{name} (x: f32[1024]) -> {shape} {{
  %x = f32[1024] parameter(0)
  %gather.{name} = f32[4096] all-gather(%x), channel_id=7, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}
  ROOT %mark.{name} = {shape} custom-call(%gather.{name}), custom_call_target="{target}"
}}
"""
    both = "(f32[1024], f32[4096])"
    found = cost(
        body.format(name="begin", shape=both, target="AsyncCollectiveStart")
        + body.format(name="end", shape="f32[4096]", target="AsyncCollectiveDone")
        + f"""
ENTRY %main (x: f32[1024]) -> f32[4096] {{
  %x = f32[1024] parameter(0)
  %first = {both} fusion(%x), kind=kLoop, calls=%begin
  ROOT %last = f32[4096] fusion(%x), kind=kLoop, calls=%end
}}
"""
    )
    assert found.total.wire_bytes == 12288
    assert found.by_name["main", "first"].once.wire_bytes == 12288
    assert found.by_name["main", "last"].once.wire_bytes == 0


@pytest.mark.parametrize(
    ("spelling", "groups"),
    [
        ("{}", None),
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{{0},{1}}", ((0,), (1,))),
        ("[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['axis_0'=8] {'axis_0'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("mesh['axis_0'=8,'axis_1'=1] {'axis_1'}", tuple((device,) for device in range(8))),
        ("mesh['x'=2,'y'=4] {'y'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("mesh['x'=2,'y'=4] {'x'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=2,'y'=4] {'y','x'}", ((0, 4, 1, 5, 2, 6, 3, 7),)),
        ("mesh['x'=2,'y'=4] {'y':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['x'=2,'y'=4] {'y':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['x'=2,'y'=4], device_ids=(7,6,5,4,3,2,1,0) {'y'}", ((7, 6, 5, 4), (3, 2, 1, 0))),
    ],
)
def test_spellings(spelling: str, groups: tuple[tuple[int, ...], ...] | None) -> None:
    assert GroupReader().text(spelling) == groups


@pytest.mark.parametrize(
    "spelling",
    [
        "[1000000,1000000]<=[1000000000000]",
        "[1000000,1000000]<=[8]",
        "[2,4]<=[7]",
        "[2,4]<=[2,4]T(0,0)",
        "[2,4]<=[0,8]",
        "[8]<=[8]",
        "mesh['x'=999999999999] {'x'}",
        "mesh['x'=2,'y'=0] {'x'}",
        "mesh['x'=2] {'z'}",
        "mesh['x'=8] {'x':(3)2}",
        "mesh['x'=8] {'x':(4)4}",
        "mesh['x'=8] {'x':(0)4}",
        "mesh['x'=8] {'x','x'}",
        "mesh['x'=2,'y'=4], device_ids=(0,1) {'y'}",
        "everyone",
    ],
)
def test_what_cannot_be_is_refused(spelling: str) -> None:
    with pytest.raises(ValueError, match=r"replica groups|mesh"):
        GroupReader().text(spelling)


def test_a_module_of_many_spellings_has_one_budget() -> None:
    reader = GroupReader()
    for rows in (1, 2, 4, 8):
        reader.iota(rows, (1 << 20) // rows, [1 << 20])
        reader.iota(rows, (1 << 20) // rows, [1 << 20])  # the same spelling again costs nothing
    with pytest.raises(ValueError, match="more than any machine has"):
        reader.iota(16, (1 << 20) // 16, [1 << 20])


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_mesh_groups_are_the_devices_that_differ_only_along_the_used_axes(
    sizes: list[int], data: st.DataObject
) -> None:
    used = data.draw(st.permutations(range(len(sizes)))) if len(sizes) > 1 else [0]
    used = used[: data.draw(st.integers(1, len(sizes)))]
    devices = list(itertools.product(*map(range, sizes)))
    numbered = {place: number for number, place in enumerate(devices)}
    expected: dict[tuple[int, ...], list[int]] = {}
    for place in sorted(devices, key=lambda place: [place[axis] for axis in used]):
        rest = tuple(place[axis] for axis in range(len(sizes)) if axis not in used)
        expected.setdefault(rest, []).append(numbered[place])
    groups = tuple(tuple(expected[rest]) for rest in sorted(expected))
    axes = ",".join(f"'a{axis}'={size}" for axis, size in enumerate(sizes))
    names = ",".join(f"'a{axis}'" for axis in used)
    assert GroupReader().text(f"mesh[{axes}] {{{names}}}") == groups
