"""Allocator events of an XSpace: what they say of blocks and of the allocator, held against xprof's memory profile."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.load import load_one
from perfscope.analyzers.readers import xplane
from perfscope.analyzers.trace import MISSING, Trace
from tests.analyzers.readers.profiles import US
from tests.analyzers.readers.wire import SpaceWriter

FILES = ("TraceLens__mi300_jax08_gemm", "TraceLens__mi300_jax_conv_08", "xprof__tpu_inference_2")


def tpu(allocated: int, **more: int | float) -> dict[str, int | float]:
    return {"index_on_host": 2, "bytes_allocated": allocated, "bytes_reserved": 50, "peak_bytes_in_use": 9000, **more}


def read(folder: Path, events: list[tuple[str, int, int, dict[str, int | float]]]) -> Trace:
    path = folder / "x.xplane.pb"
    path.write_bytes(SpaceWriter().plane("/host:CPU", {"main": [("work", 0, 9 * US, {}), *events]}).bytes())
    trace = xplane.read(path)
    assert isinstance(trace, Trace)
    trace.check()
    return trace


def test_a_tpu_frees_by_address(tmp_path: Path) -> None:
    size = {"allocation_bytes": 256, "requested_bytes": 200}
    trace = read(
        tmp_path,
        [
            ("MemoryAllocation", US, US, tpu(1256, addr=4096, **size)),
            ("MemoryDeallocation", 2 * US, 2 * US, tpu(1000, addr=4096)),  # its allocation says how large it was
            ("MemoryDeallocation", 3 * US, 3 * US, tpu(400, addr=8192)),  # allocated before: the total fell by 600
        ],
    )
    memory = trace.rows["memory"]
    assert memory["bytes"].tolist() == [256, -256, -600]
    assert memory["action"].tolist() == [0, 1, 1]
    assert memory["on_device"].tolist() == [True] * 3
    assert memory["ordinal"].tolist() == [2] * 3
    assert memory["requested_bytes"].tolist() == [200, MISSING, MISSING]
    assert memory["stack_bytes"].tolist() == [50] * 3
    assert memory["peak_bytes"].tolist() == [9000] * 3
    assert not trace.source.unplaced


def test_a_free_whose_size_nothing_tells_is_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, [("MemoryDeallocation", US, US, tpu(1000, addr=4096))])
    assert len(trace.rows["memory"]) == 0
    assert dict(trace.source.unplaced) == {"allocator events of unknown size": 1}


def test_what_says_nothing_of_the_allocator_says_no_fragmentation(tmp_path: Path) -> None:
    bare: dict[str, int | float] = {"allocation_bytes": 256, "addr": 4096}
    whole: dict[str, int | float] = {**bare, "peak_bytes_in_use": 256}
    trace = read(tmp_path, [("MemoryAllocation", US, US, bare), ("MemoryAllocation", 2 * US, 2 * US, whole)])
    fragmentation = trace.rows["memory"]["fragmentation"]
    assert np.isnan(fragmentation[0])
    assert fragmentation[1] == 0.0


def allocators(path: Path) -> dict[tuple[bool, int], tuple[int, int, float]]:
    """By memory: most in use in the recording, most ever, and the fragmentation at the first."""
    memory = load_one(path).rows["memory"]
    found = {}
    for on_device, ordinal in set(zip(memory["on_device"].tolist(), memory["ordinal"].tolist(), strict=True)):
        rows = np.flatnonzero((memory["on_device"] == on_device) & (memory["ordinal"] == ordinal))
        in_use = memory["allocated_bytes"][rows] + memory["stack_bytes"][rows]
        at = rows[int(np.argmax(in_use))]
        found[on_device, ordinal] = (
            int(in_use.max()),
            int(memory["peak_bytes"][rows].max()),
            float(memory["fragmentation"][at]),
        )
    return found


XPROF = {
    "TraceLens__mi300_jax_conv_08": {
        (True, 0): (1_730_171_904, 1_730_171_904, 0.419346),
        **{(True, ordinal): (1_732_169_984, 1_732_169_984, 0.391988) for ordinal in range(1, 8)},
    },
    "xprof__tpu_inference_2": {
        (True, 0): (21_492_569_216, 16_106_341_504, 0.0),
        (True, 1): (21_492_671_104, 10_737_555_584, 0.109555),
        (True, 2): (21_492_671_104, 10_737_555_584, 0.109555),
        (True, 3): (21_492_569_216, 10_737_555_584, 0.0),
    },
}
"""``peakStats`` (stack and heap), ``peakBytesUsageLifetime`` and fragmentation of xprof 2.24.2's memory profile."""


@pytest.mark.corpus
@pytest.mark.parametrize("name", XPROF)
def test_allocators_of_real_profiles_are_those_of_xprof(corpus: Path, name: str) -> None:
    assert allocators(corpus / "xplane" / f"{name}.xplane.pb.gz") == XPROF[name]


@pytest.mark.corpus
@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_xprof_says_so_today(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(os.environ, "TF_CPP_MIN_LOG_LEVEL", "3")
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data", reason="xprof is not installed")
    path = tmp_path / f"{name}.xplane.pb"
    path.write_bytes(gzip.decompress((corpus / "xplane" / f"{name}.xplane.pb.gz").read_bytes()))
    data, _ = convert.xspace_to_tool_data([str(path)], "memory_profile", {"use_saved_result": False})
    ours = allocators(path)
    told = json.loads(data)["memoryProfilePerAllocator"]
    checked = 0
    for allocator, profile in told.items():
        summary = profile["profileSummary"]
        stats = summary["peakStats"]
        key = (False, MISSING) if "host" in allocator else (True, int("".join(filter(str.isdigit, allocator))))
        in_use = int(stats["stackReservedBytes"]) + int(stats["heapAllocatedBytes"])
        assert ours[key] == (in_use, int(summary["peakBytesUsageLifetime"]), stats["fragmentation"])
        checked += 1
    assert checked == len(ours)


@pytest.mark.corpus
def test_every_block_of_a_real_recording_is_freed_with_its_size(corpus: Path) -> None:
    memory = load_one(corpus / "xplane" / "xprof__tpu_inference_2.xplane.pb.gz").rows["memory"]
    for ordinal in range(4):
        rows = np.flatnonzero(memory["ordinal"] == ordinal)
        total, size = memory["allocated_bytes"][rows], memory["bytes"][rows]
        # the allocator's own total moves by exactly what each event says
        assert (np.diff(total) == size[1:]).mean() > 0.99
