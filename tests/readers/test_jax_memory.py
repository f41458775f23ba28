"""JAX's device memory profiles: real ones against jax's own decoder, built ones, and damage."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.hlo.protos import message
from perfscope.analyzers.readers import jax_memory
from perfscope.analyzers.readers.load import load_one
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

USER, JAX = "/home/me/train.py", "/opt/venv/lib/python3.12/site-packages/jax/_src/pjit.py"


def profile(device: str = "cuda:1", stack: tuple[str, ...] = (JAX, USER, JAX)) -> Any:
    """Two buffers of 400 bytes and a program of 70, from one stack; files innermost first, line 10 onwards."""
    built = message("pprof.Profile")()
    strings = ["", "allocations", "count", "space", "bytes", "kind", "buffer", "executable", "device", device, "call"]
    for kind, unit in ((1, 2), (3, 4)):
        built.sample_type.add(type=kind, unit=unit)
    for number, file in enumerate(stack, start=1):
        strings.append(file)
        built.function.add(id=number, name=10, filename=len(strings) - 1)
        built.location.add(id=number).line.add(function_id=number, line=9 + number)
    buffer = built.sample.add(location_id=range(1, len(stack) + 1), value=[2, 800])
    buffer.label.add(key=5, str=6)
    buffer.label.add(key=8, str=9)
    built.sample.add(location_id=range(1, len(stack) + 1), value=[1, 70]).label.add(key=5, str=7)
    built.string_table.extend(strings)
    return built


def read(built: Any, path: Path) -> Trace:
    path.write_bytes(gzip.compress(built.SerializeToString()))
    trace = load_one(path)
    trace.check()
    return trace


def test_what_is_held_and_who_asked(tmp_path: Path) -> None:
    trace = read(profile(), tmp_path / "memory.prof")
    assert trace.source.format == "jax_memory"
    assert trace.recorded == frozenset({"memory_state"})
    held = trace.rows["held"]
    assert held["bytes"].tolist() == [800, 70]
    assert held["count"].tolist() == [2, 1]
    assert [trace.text(code) for code in held["kind"].tolist()] == ["buffer", "executable"]
    assert held["on_device"].tolist() == [True, True]  # the program is where the only device is
    assert held["ordinal"].tolist() == [1, 1]
    assert held["category"].tolist() == [MemoryCategory.UNKNOWN, MemoryCategory.CODE]
    frames = trace.rows["frames"]
    row = int(held["frame"][0])
    assert (trace.text(int(frames["file"][row])), int(frames["line"][row])) == (USER, 11)
    parent = int(frames["parent"][row])
    assert trace.text(int(frames["file"][parent])) == JAX
    assert int(frames["parent"][parent]) == MISSING
    assert len(frames) == 3  # both samples share the stack


@pytest.mark.parametrize(
    ("device", "on_device", "ordinal"),
    [("TFRT_CPU_0", False, MISSING), ("cuda:0", True, 0), ("rocm:3", True, 3), ("TPU_2(process=0,(1,0,0,0))", True, 2)],
)
def test_devices_by_their_names(tmp_path: Path, device: str, on_device: bool, ordinal: int) -> None:
    held = read(profile(device), tmp_path / "memory.prof").rows["held"]
    assert (bool(held["on_device"][0]), int(held["ordinal"][0])) == (on_device, ordinal)


def test_what_perfscope_run_puts_around_jax_is_not_the_users(tmp_path: Path) -> None:
    ours = "/home/me/src/perfscope/profiler/jax_compat_calls.py"
    trace = read(profile(stack=(JAX, ours, USER)), tmp_path / "memory.prof")
    row = int(trace.rows["held"]["frame"][0])
    assert trace.text(int(trace.rows["frames"]["file"][row])) == USER


def test_without_a_frame_of_the_users_a_package_stands_for_it(tmp_path: Path) -> None:
    brax = "/opt/venv/lib/python3.12/site-packages/brax/envs/base.py"
    trace = read(profile(stack=(JAX, brax, JAX)), tmp_path / "memory.prof")
    row = int(trace.rows["held"]["frame"][0])
    assert trace.text(int(trace.rows["frames"]["file"][row])) == brax


def test_it_is_found_unzipped_too(tmp_path: Path) -> None:
    path = tmp_path / "any.name"
    path.write_bytes(profile().SerializeToString())
    assert load_one(path).source.format == "jax_memory"


def test_damage_is_one_line(tmp_path: Path) -> None:
    whole = profile().SerializeToString()
    path = tmp_path / "memory.prof"
    for length in range(len(jax_memory._HEAD), len(whole) - 1):  # the strings it points at come last
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"memory\.prof: ") as refused:
            jax_memory.read(path)
        assert "\n" not in str(refused.value)
    packed = gzip.compress(whole)
    path.write_bytes(packed[:-12])
    with pytest.raises(DataError, match="is cut off"):
        jax_memory.read(path)


def _another_string(built: Any) -> None:
    built.sample[0].label[0].str = 99


def _another_place(built: Any) -> None:
    built.sample[0].location_id[0] = 99


def _another_function(built: Any) -> None:
    built.location[0].line[0].function_id = 99


def _negative(built: Any) -> None:
    built.sample[0].value[1] = -5


def _cpu_time(built: Any) -> None:
    built.string_table[1] = "samples"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_another_string, "string 99 of"),
        (_another_place, "location 99, which is missing"),
        (_another_function, "function 99, which is missing"),
        (_negative, "without a number and a size"),
        (_cpu_time, "its samples count samples, space"),
    ],
)
def test_what_hangs_in_the_air_is_refused(tmp_path: Path, change: Any, said: str) -> None:
    built = profile()
    change(built)
    with pytest.raises(DataError, match=said):
        read(built, tmp_path / "memory.prof")


def test_endless_stacks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_memory, "MAX_FRAMES", 5)
    with pytest.raises(DataError, match="more than 5 frames"):
        read(profile(), tmp_path / "memory.prof")


def oracle(data: bytes) -> Counter[tuple[str, str, int, int]]:
    """Kind, device, number and bytes of the samples as jax itself decodes them."""
    internal = pytest.importorskip("jaxlib._jax", reason="this jaxlib has no decoder of its own")
    decoded = json.loads(internal.pprof_profile_to_json(data))
    strings = decoded["stringTable"]
    found: Counter[tuple[str, str, int, int]] = Counter()
    for sample in decoded["sample"]:
        labels = {strings[int(one["key"])]: strings[int(one["str"])] for one in sample["label"]}
        count, size = map(int, sample["value"])
        found[labels["kind"], labels.get("device", ""), count, size] += 1
    return found


@pytest.mark.corpus
@pytest.mark.jax
@pytest.mark.parametrize(
    ("name", "device"),
    [("Ajax", "TFRT_CPU_0"), ("microjax", "cuda:0")],
)
def test_real_profiles_say_what_jax_says_of_them(corpus: Path, name: str, device: str) -> None:
    path = corpus / "jax_memprof" / f"{name}__memory.prof"
    trace = load_one(path)
    trace.check()
    told = oracle(gzip.decompress(path.read_bytes()))
    held = trace.rows["held"]
    kinds = [trace.text(code) for code in held["kind"].tolist()]
    found = Counter(
        (kind, device if kind == "buffer" else "", count, size)
        for kind, count, size in zip(kinds, held["count"].tolist(), held["bytes"].tolist(), strict=True)
    )
    assert found == told
    assert held["on_device"].all() == (device == "cuda:0")


@pytest.mark.corpus
def test_the_users_line_of_a_real_profile(corpus: Path) -> None:
    trace = load_one(corpus / "jax_memprof" / "microjax__memory.prof")
    held, frames = trace.rows["held"], trace.rows["frames"]
    files = {trace.text(int(frames["file"][row])) for row in held["frame"].tolist()}
    assert all("/microjax/" in file for file in files)
    assert {Path(file).name for file in files} >= {"lightcurve.py"}


@pytest.mark.jax
def test_a_profile_of_this_process(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    kept = jax.numpy.arange(12_345.0)
    kept.block_until_ready()
    path = tmp_path / "now.prof"
    path.write_bytes(jax.profiler.device_memory_profile())
    trace = load_one(path)
    frames = trace.rows["frames"]
    held = trace.rows["held"]
    ours = [
        row
        for row, size in zip(held["frame"].tolist(), held["bytes"].tolist(), strict=True)
        if size >= kept.nbytes and trace.text(int(frames["file"][row])) == __file__
    ]
    assert ours
    assert sum(oracle(gzip.decompress(path.read_bytes())).values()) == len(held)
