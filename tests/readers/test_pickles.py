"""Pickles of snapshots and dumps: read as pickle reads them where they are plain; closed to all others."""

from __future__ import annotations

import copyreg
import pickle
import struct
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.__main__ import main
from perfscope.analyzers.readers import pickles
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.readers.torch_memory import history as entries_module
from perfscope.analyzers.readers.torch_memory.history import NUMBERS, Entries
from perfscope.analyzers.readers.torch_memory.state import Stacks
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, TraceBuilder
from tests.conftest import corpus_files
from tests.readers.memory_snapshots import FRAMES, Allocator

SAMPLES = sorted(corpus_files("torch_mem", "*.pickle.gz"), key=lambda path: path.stat().st_size)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.tuples(inner),
    max_leaves=30,
)
FIELD = st.sampled_from([*NUMBERS, "user_metadata", "compile_context", "pool_id", "category", "extra"])
VALUE = (
    st.integers(-(2**63), 2**63 - 1) | st.text(max_size=80) | st.tuples(st.integers(0, 2**33), st.integers(0, 5))
    | st.none() | st.booleans() | st.floats(allow_nan=False)
)  # fmt: skip


def plain(data: bytes) -> Any:
    return pickles.load(data, "plain pickle")


@given(PLAIN, st.integers(2, 5))
def test_plain_pickles_are_read_as_pickle_reads_them(value: Any, protocol: int) -> None:
    assert plain(pickle.dumps(value, protocol=protocol)) == value


def test_tuples_within_the_limit_are_hashed() -> None:
    nested = b")" + b"\x85" * pickles.MOST_TUPLES
    (key,) = plain(b"\x80\x04}" + nested + b"Ns.")
    assert type(key) is tuple
    with pytest.raises(DataError, match="more than 40,000 tuples"):
        plain(b"\x80\x04}" + nested + b"\x85Ns.")


def columns(data: bytes) -> list[Any]:
    strings = TraceBuilder()
    stacks = Stacks(strings)
    histories = [Entries.of(history, stacks) for history in plain(data)["device_traces"]]
    frames = stacks.rows()

    def stack(row: int) -> tuple[Any, ...]:
        parts = []
        while row >= 0:
            parts.append((frames["file"][row], frames["line"][row], strings.strings[frames["name"][row]]))
            row = frames["parent"][row]
        return tuple((int(file) >= 0, int(line), name) for file, line, name in parts)

    result = []
    for entries in histories:
        shown: dict[str, Any] = {name: entries.column(name).tolist() for name in NUMBERS}
        for name, words in entries.words.items():
            shown[name] = [words[code] if code != MISSING else None for code in entries.column(name).tolist()]
        shown["frame"] = [stack(row) for row in entries.column("frame").tolist()]
        result.append(shown)
    return result


def expected(snapshot: dict[str, Any]) -> list[Any]:
    def number(value: Any) -> int:
        return value if type(value) is int else MISSING

    def word(value: Any) -> str | None:
        if type(value) is tuple and all(type(part) is int for part in value):
            return str(value)
        return value if type(value) is str else None

    def stack(frames: Any) -> tuple[Any, ...]:
        unknown = ("", "??", "none", "<unknown>")
        return tuple((f["filename"] not in unknown, f["line"] or MISSING, f["name"]) for f in frames or ())

    return [
        {
            **{name: [number(entry.get(name)) for entry in history] for name in NUMBERS},
            **{name: [word(entry.get(name)) for entry in history] for name in entries_module.WORDS},
            "frame": [stack(entry.get("frames")) for entry in history],
        }
        for history in snapshot["device_traces"]
    ]


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.dictionaries(FIELD, VALUE, max_size=6), max_size=30), max_size=3),
    st.integers(2, 5),
    st.booleans(),
)
def test_histories_become_columns(histories: list[Any], protocol: int, sort: bool) -> None:
    for number, history in enumerate(histories):
        for at, entry in enumerate(history):
            entry["action"] = ("alloc", "free_completed", "oom")[at % 3]
            if at % 4:
                entry["frames"] = FRAMES[at % 3] if at % 2 else list(FRAMES[(at + number) % 3])
        if sort:
            history[:] = [dict(sorted(entry.items())) for entry in history]
    snapshot = {"segments": [], "device_traces": histories}
    data = pickle.dumps(snapshot, protocol=protocol)
    assert columns(data) == expected(snapshot)


def test_more_entries_than_pickle_writes_at_once() -> None:
    snapshot = Allocator(seed=8).run(6000).snapshot()
    data = pickle.dumps(snapshot, protocol=4)
    assert len(snapshot["device_traces"][0]) > 3000
    assert columns(data) == expected(snapshot)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("path", "protocol"),
    [*((path, None) for path in SAMPLES), *((path, protocol) for path in SAMPLES[:1] for protocol in (2, 5))],
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_histories_of_the_corpus(path: Path, protocol: int | None, corpus: Path) -> None:
    import gzip

    data = gzip.decompress(path.read_bytes())
    snapshot = pickle.loads(data)
    if protocol is not None:
        data = pickle.dumps(snapshot, protocol=protocol)
    assert columns(data) == expected(snapshot)


class Call:
    """Pickles as a call of a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path(tempfile.gettempdir()) / "perfscope-was-run",))


def begin(*parts: bytes) -> bytes:
    """A pickle that looks like a snapshot up to ``parts``."""
    return b"\x80\x04}\x94(\x8c\x08segments\x94]\x94\x8c\x0ddevice_traces\x94]\x94" + b"".join(parts) + b"."


HOSTILE = {
    "global": (begin(b"cos\nsystem\n"), "needs a class"),
    "stack global": (begin(b"\x8c\x02os\x8c\x06system\x93"), "needs a class"),
    "inst": (begin(b"(ios\nsystem\n"), "needs a class"),
    "reduce": (begin(b"NNR"), "call something"),
    "build": (begin(b"}}b"), "build an object"),
    "newobj": (begin(b"N)\x81"), "build an object"),
    "newobj_ex": (begin(b"N)}\x92"), "build an object"),
    "obj": (begin(b"(No"), "build an object"),
    "persistent": (begin(b"Pid\n"), "persistent"),
    "binary persistent": (begin(b"NQ"), "persistent"),
    "extension": (begin(b"\x82\x01"), "extension"),
    "extension of four bytes": (begin(b"\x84\x01\x00\x00\x00"), "extension"),
    "a place of a billion": (begin(b"Nr\x00\xca\x9a\x3b"), "memo index 1,000,000,000"),
    "a get of a billion": (begin(b"j\x00\xca\x9a\x3b"), "Memo value not found at index 1000000000"),
    "bytes of an exabyte": (begin(b"\x8e" + struct.pack("<Q", 2**60)), "no memory snapshot"),
    "text of an exabyte": (begin(b"\x8d" + struct.pack("<Q", 2**60)), "does not contain completely"),
    "text of two GiB": (begin(b"X\xff\xff\xff\x7f"), "does not contain completely"),
    "a frame of an exabyte": (begin(b"\x95" + struct.pack("<Q", 2**60)), "does not contain completely"),
    "a frame that ends within a text": (begin(b"\x95\x05" + bytes(7) + b"\x8c\x08headless"), "ends within an opcode"),
    "a frame that ends within a number": (begin(b"\x95\x01" + bytes(7) + b"K\x01"), "opcode 0x4b"),
    "a frame within a frame": (begin(b"\x95\x0b" + bytes(7) + b"\x95\x01" + bytes(7) + b"NN"), "within a frame"),
    "a bytearray": (begin(b"\x96" + struct.pack("<Q", 2**60)), "no memory snapshot"),
    "a long of two GiB": (begin(b"\x8b\xff\xff\xff\x7f"), "no memory snapshot"),
    "a frozen set": (begin(b"(\x91"), "no memory snapshot"),
    "a set": (begin(b"\x8f("), "no memory snapshot"),
    "nested": (begin(b"(]" * 100_000), "no dictionary with segments"),
    "a tuple of tuples as a key": (begin(b"}(" + b")" + b"\x85" * 200_000 + b"Nu"), "more than 40,000 tuples"),
    "a mark too few": (begin(b"uu"), "corrupt"),
    "items of a number": (begin(b"K\x01(NNu"), "corrupt"),
    "append to a number": (begin(b"K\x01Na"), "corrupt"),
    "ends in a container": (begin(b""), "no dictionary with segments"),
    "cut off": (begin(b"")[:-1], "cut off"),
    "protocol 77": (b"\x80\x4d" + begin()[2:], "protocol 77"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "said"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_pickles_are_refused_in_one_line(
    data: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(SystemExit) as stopped:
            main(["analyze", str(path)])
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    shown = capsys.readouterr()
    assert stopped.value.code == 4
    assert len(shown.err.strip().splitlines()) == 1
    assert str(path) in shown.err
    assert said in shown.err


def test_what_would_run_is_not_run(tmp_path: Path) -> None:
    trap = Path(tempfile.gettempdir()) / "perfscope-was-run"
    trap.unlink(missing_ok=True)
    snapshot = {**Allocator(seed=8).run(20).snapshot(), "more": Call()}
    for protocol in (2, 3, 4, 5):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(snapshot, protocol=protocol))
        with pytest.raises(DataError, match="needs a class"):
            load_all(path)
    assert not trap.exists()


def test_an_extension_that_is_known_is_not_used() -> None:
    copyreg.add_extension("builtins", "print", 0x7F)
    try:
        with pytest.raises(DataError, match="extension"):
            plain(b"\x80\x04\x82\x7f.")
    finally:
        copyreg.remove_extension("builtins", "print", 0x7F)


def test_a_flood_of_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MOST_CONTAINERS", 1000)
    with pytest.raises(DataError, match="more than 1,000 containers"):
        plain(begin(b"}" * 1001))


def test_a_history_that_never_ends_an_entry() -> None:
    with pytest.raises(DataError):
        plain(begin(b"]\x94(" + b"}\x94(" * 50))
