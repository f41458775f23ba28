"""Which device of a job a recorded device is: device assignments of programs, launches, numbers of processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.xspace.assignment import device_assignment
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import DataError
from tests.analyzers.hlo.test_proto import made
from tests.analyzers.readers.profiles import US, op, read
from tests.analyzers.readers.wire import SpaceWriter, field, varint

CPU_JOB = ((0, 1, 2048, 2049),)
"""One replica of four partitions, on two devices of each of two processes."""


def assigned(replicas: Sequence[Sequence[int]]) -> bytes:
    """A program whose device of a replica and partition is ``replicas[replica][partition]``."""
    partitions = zip(*replicas, strict=True)
    devices = b"".join(field(3, field(1, b"".join(map(varint, ids)))) for ids in partitions)
    # fields of a message that come twice are one message
    return bytes(made().SerializeToString()) + field(1, field(15, devices))


def on_cpu(folder: Path, replicas: Sequence[Sequence[int]], ordinals: Sequence[int]) -> Trace:
    ran = [op("fusion", 10 * at, 10 * at + 5, at, device_ordinal=number) for at, number in enumerate(ordinals, start=1)]
    space = SpaceWriter().metadata(**{"jit_f(7)": assigned(replicas)}).plane("/host:CPU", {"pool": ran})
    return read(folder, space)


def on_gpu(folder: Path, replicas: Sequence[Sequence[int]], launches: dict[str, list[tuple[Any, ...]]]) -> Trace:
    space = SpaceWriter().metadata(**{"jit_f(7)": assigned(replicas)})
    for device in range(2):
        stats = {"hlo_op": "dot.1", "hlo_module": "jit_f", "program_id": 7, "run_id": 1}
        space.plane(f"/device:GPU:{device}", {"Stream #13(Kernel)": [("gemm", 10 * US, 20 * US, stats)]})
    return read(folder, space.plane("/host:CPU", launches))


def told(first: int) -> dict[str, list[tuple[Any, ...]]]:
    """Launches of a process of two devices, the first of which has the global id ``first``."""
    return {
        "python": [("Execute (jit_f)", 0, US, {"num_addressable_devices": 2})],
        "a": [("[0] Execute (jit_f)", 0, US, {"global_device_id": first})],
        "b": [("[1] Execute (jit_f)", 0, US, {"global_device_id": first + 1})],
    }


def identity(trace: Trace) -> tuple[list[int], int | None, int | None]:
    return trace.rows["hlo_ops"]["place"].tolist(), trace.source.rank, trace.source.world_size


@pytest.mark.parametrize(
    ("replicas", "ordinals", "expected"),
    [
        (CPU_JOB, (0, 1), ([0, 1], 0, 2)),
        (CPU_JOB, (2048, 2049), ([2, 3], 1, 2)),
        (((2049, 0, 1, 2048),), (2048, 2049), ([3, 0], 1, 2)),  # a mesh in another order
        (((0, 1), (2048, 2049)), (2048, 2049), ([2, 3], 1, 2)),  # two replicas of two partitions
        (((0,), (1,), (131072,), (131073,)), (131072, 131073), ([2, 3], 1, 2)),  # as jax 0.6 and 0.7 number them
        (((0, 1, 2, 3),), (0, 1, 2, 3), ([0, 1, 2, 3], None, None)),  # one process
        (CPU_JOB, (5, 6), ([-1, -1], None, None)),
        (CPU_JOB, (0, 2048), ([0, 2], None, None)),  # devices of two processes in one recording
    ],
)
def test_devices_of_the_cpu_backend(
    tmp_path: Path, replicas: Sequence[Sequence[int]], ordinals: Sequence[int], expected: tuple[Any, ...]
) -> None:
    assert identity(on_cpu(tmp_path, replicas, ordinals)) == expected


def test_devices_of_a_plane_are_those_that_launches_tell(tmp_path: Path) -> None:
    assert identity(on_gpu(tmp_path, ((0, 1, 2, 3),), told(2))) == ([2, 3], 1, 2)
    assert identity(on_gpu(tmp_path, ((3, 2, 1, 0),), told(2))) == ([1, 0], 1, 2)
    assert identity(on_gpu(tmp_path, ((0, 1),), told(0))) == ([0, 1], None, None)


def test_devices_of_a_plane_are_not_guessed(tmp_path: Path) -> None:
    host = {"python": [("work", 0, US)]}
    assert identity(on_gpu(tmp_path, ((0, 1, 2, 3),), host)) == ([-1, -1], None, None)
    contradicting = told(2) | {"c": [("[0] Execute (jit_f)", 0, US, {"global_device_id": 0})]}
    assert identity(on_gpu(tmp_path, ((0, 1, 2, 3),), contradicting)) == ([-1, 3], 1, 2)


def test_an_assignment_that_is_not_sound_is_none() -> None:
    assert device_assignment(assigned(((0, 1), (2, 3))), "m.pb") == (0, 1, 2, 3)
    assert device_assignment(assigned(((0, 0),)), "m.pb") == ()
    assert device_assignment(bytes(made().SerializeToString()), "m.pb") == ()
    uneven = field(1, field(15, field(3, field(1, 0)) + field(3, field(1, 1) + field(1, 2))))
    assert device_assignment(uneven, "m.pb") == ()
    unpacked = field(1, field(15, field(3, field(1, 4)) + field(3, field(1, 5))))
    assert device_assignment(unpacked, "m.pb") == (4, 5)


def test_an_assignment_that_is_cut_off_is_refused() -> None:
    with pytest.raises(DataError, match=r"^m\.pb: cut off or corrupt"):
        device_assignment(assigned(((0, 1),))[:-1], "m.pb")
