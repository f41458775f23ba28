"""Memory snapshots through the native library equal the reader in Python, to the last frame."""

from __future__ import annotations

import pickle
from pathlib import Path
from random import Random
from typing import Any

import pytest

from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.analyzers.readers.torch_memory import reader
from perfscope.native.snapshot import read_snapshot
from tests.conftest import corpus_files
from tests.fuzz.mutate import mutated, pickled
from tests.native.test_kineto import SEEDS
from tests.native.twins import assert_equal, both, needs_library
from tests.readers.memory_snapshots import FRAMES, Allocator

pytestmark = needs_library

FRAME = FRAMES[0][0]


def entry(**changed: Any) -> dict[str, Any]:
    return {
        "action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 9, "frames": FRAMES[0], **changed,
    }  # fmt: skip


def segment(**changed: Any) -> dict[str, Any]:
    return {
        "device": 0, "address": 4096, "total_size": 2048, "stream": 0, "segment_type": "small",
        "segment_pool_id": (0, 0), "frames": FRAMES[1], "blocks": [], **changed,
    }  # fmt: skip


def block(**changed: Any) -> dict[str, Any]:
    return {"size": 512, "requested_size": 500, "state": "active_allocated", "frames": FRAMES[0], **changed}


def in_itself() -> list[Any]:
    held: list[Any] = [segment()]
    held.append(held)
    return held


def deep(levels: int) -> Any:
    return [] if levels == 0 else [deep(levels - 1)]


def mark(**changed: Any) -> dict[str, Any]:
    return {"stage": "START", "name": "ProfilerStep#4", "device": 0, "time_us": 5, **changed}


FOLLOWED: dict[str, dict[str, Any]] = {
    "words": {"history": [entry(action=word) for word in ("free", None, 7, "", "\u00e4\U0001f600", "oom", "free")]},
    "numbers": {"history": [
        entry(addr=value, size=value, stream=value, device_free=value, time_us=value)
        for value in (0, -1, 255, 256, 65_536, -(2**31), 2**31, 2**40, 2**63 - 1, -(2**63), True, None, "7", 1.5, [])
    ]},
    "pools": {"history": [
        *(entry(pool_id=pool) for pool in ((0, 0), (0, 3), (2**33, -1), "(0, 3)", "", None, 4, [0, 1])),
        entry(segment_pool_id=(1, 1)), entry(pool_id=None, segment_pool_id=(1, 1)),
        entry(pool_id=(2, 2), segment_pool_id=(1, 1)),
    ]},
    "frames": {"history": [
        *(entry(frames=frames) for frames in (None, [], {}, "x", [None, FRAME, 3, [FRAME]], [FRAME] * 3, [{}], [[]])),
        *(entry(frames=[{**FRAME, "line": line}]) for line in (0, -1, 1, 2**31 - 1, 2**31, True, None, "3", 1.5)),
        *(entry(frames=[{**FRAME, "filename": name, "name": name}]) for name in ("", "??", "none", None, 3, "\u00e4")),
        entry(frames=[{"line": 3}]), entry(frames=[dict(reversed(FRAME.items()))]),
    ]},
    "entries that are none": {"history": [entry(), None, 3, [], [entry()], "x", {}, (1, 2), entry()]},
    "more than pickle writes at once": {"history": [entry(time_us=at, size=at % 7) for at in range(2500)]},
    "devices that are none": {"device_traces": [[entry()], None, {}, [entry()], [], 3]},
    "no histories": {"device_traces": {"0": [entry()]}},
    "segments": {"segments": [
        segment(segment_pool_id=(1, 2)), segment(segment_type=3, device=1), None, {}, [], segment(is_expandable=True),
        segment(blocks=[block(), block(state="inactive"), block(state="new"), None, block(frames=None), {}]),
        segment(blocks=[block(history=[{"addr": 1, "real_size": 3, "frames": FRAMES[2]}])]),
    ]},
    "numbers of segments": {"segments": [segment(stream=-1)]},
    "annotations": {"external_annotations": [
        mark(), mark(time_us=8, name="forward"), mark(time_us=9, name="forward", stage="END"),
        mark(time_us=30, stage="END"), mark(stage="END"), mark(name=None), None, 3,
    ]},
    "a list in itself": {"segments": in_itself()},
    "other content": {"allocator_settings": {"share": 0.5, "deep": deep(60)}, "more": [None, "\u2028", -7]},
}  # fmt: skip
"""What the library reads."""

LEFT = {
    "a number of nine bytes": {"history": [entry(addr=2**63)]},
    "a surrogate": {"history": [entry(action="\ud800")]},
    "other tuples": {"history": [entry(pool_id=pool) for pool in ((), (1,), (1, 2, 3), ("a", "b"), (1, None))]},
    "a key that is no text": {"history": [{**entry(), 3: 4}]},
    "a share in a segment": {"segments": [segment(fragmentation=0.5)]},
    "deep": {"segments": [segment(more=deep(60))]},
    "no segments": {"segments": None},
    "bytes": {"more": b"x"},
}
"""What it leaves to Python."""


def snapshot(content: dict[str, Any], protocol: int) -> bytes:
    made = {"segments": [segment(blocks=[block()])], "device_traces": [content.get("history", [entry()])], **content}
    return pickle.dumps(made, protocol)


@pytest.mark.parametrize("name", [*FOLLOWED, *LEFT])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_odd_snapshots(name: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = snapshot(FOLLOWED.get(name) or LEFT[name], protocol)
    assert (read_snapshot(data) is not None) == (name in FOLLOWED and protocol > 2)
    (tmp_path / "x.pickle").write_bytes(data)
    assert_equal(*both(reader.read, tmp_path / "x.pickle", monkeypatch))


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


ENTRY = b"}\x94(" + text("action") + text("alloc") + text("size") + b"K\x07" + text("addr") + b"K\x01u"
OPCODES: dict[str, tuple[bytes, bool]] = {
    "as it should be": (b"](" + ENTRY + b"e", True),
    "a key twice": (b"](" + ENTRY + text("size") + b"K\x09s" + text("size") + b"K\x08se", True),
    "an entry that is changed later": (b"](" + ENTRY + b"h\x02" + text("size") + b"K\x09se", True),
    "an entry twice": (b"](" + ENTRY + b"h\x02e", True),
    "a tuple of remembered numbers": (b"](" + ENTRY + text("pool_id") + b"K\x03\x94h\x03h\x03\x86se", False),
    "three numbers and a pair": (b"](K\x01K\x02" + ENTRY + text("pool_id") + b"K\x03M\x04\x00\x86se", True),
    "empty marks": (b"](e(e" + ENTRY + b"(ua", True),
    "numbers of no bytes": (b"](" + ENTRY + text("size") + b"\x8a\x00se", True),
    "a negative number": (b"](" + ENTRY + text("size") + b"\x8a\x01\xff" + b"se", True),
    "a value without a key": (b"](" + ENTRY + b"(" + text("size") + b"ue", False),
    "a value that is not remembered": (b"](" + ENTRY + b"h\x09e", False),
    "a mark too few": (b"]" + ENTRY + b"e", False),
    "nothing below the mark": (b"](" + ENTRY + b"(ae", False),
    "nothing to remember": (b"](\x94" + ENTRY + b"e", False),
    "an item of a dictionary": (b"](" + ENTRY + b"K\x01ae", False),
    "a frame that is too long": (b"\x95\xff\x00\x00\x00\x00\x00\x00\x00](" + ENTRY + b"e", False),
    "a frame to the end of an entry": (b"](\x95" + bytes([len(ENTRY), *[0] * 7]) + ENTRY + b"e", True),
    "a frame that ends within an opcode": (b"](\x95" + bytes([len(ENTRY) - 2, *[0] * 7]) + ENTRY + b"e", False),
    "a frame that ends within a text": (b"](\x95" + bytes([8, *[0] * 7]) + ENTRY + b"e", False),
    "a frame within a frame": (b"](\x95" + (b"\x40" + bytes(7) + b"\x95\x02" + bytes(7)) + ENTRY * 3 + b"e", False),
    "a class": (b"](" + ENTRY + b"cos\nsystem\ne", False),
    "a call": (b"](" + ENTRY + b"NNRe", False),
    "text beyond the end": (b"X\xff\xff\xff\xff", False),
    "a remembered number of a billion": (b"](" + ENTRY + b"j\x00\xca\x9a\x3b" + b"e", False),
}
"""Content of a history, and whether the library reads it."""


@pytest.mark.parametrize("name", OPCODES)
def test_odd_opcodes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content, is_read = OPCODES[name]
    root = b"\x80\x04}\x94(" + text("segments") + b"]\x94" + text("device_traces") + b"]"
    for end, is_whole in ((b"au.", True), (b"au.more", True), (b"au", False), (b"a.", False), (b"au(.", False)):
        data = root + content + end
        assert (read_snapshot(data) is not None) == (is_read and is_whole)
        (tmp_path / "x.pickle").write_bytes(data)
        assert_equal(*both(reader.read, tmp_path / "x.pickle", monkeypatch))


def test_mutated_files_give_the_same_tables_or_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "x.pickle", 0
    content = pickle.dumps(Allocator(seed=3).run(40).snapshot() | {"external_annotations": [mark(), mark(stage="END")]})
    for seed in SEEDS:
        data = mutated(content, pickled, Random(seed))
        read += read_snapshot(data) is not None
        path.write_bytes(data)
        try:
            assert_equal(*both(reader.read, path, monkeypatch))
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    assert read > len(SEEDS) // 4


@pytest.mark.corpus
@pytest.mark.parametrize("path", corpus_files("torch_mem", "*.pickle.gz"), ids=lambda path: path.name)
def test_the_corpus_gives_the_same_tables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_bytes(path) as data:
        assert read_snapshot(data) is not None
    assert_equal(*both(reader.read, path, monkeypatch))
