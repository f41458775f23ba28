"""Replica groups: every spelling gives the groups that a count by hand gives, and none may claim too many."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.hlo.replica_groups import GroupReader


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
