"""Events read from their bytes are those that protobuf reads, whatever their fields, order and damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope import native
from perfscope.analyzers.readers.xspace import events, planes
from perfscope.analyzers.readers.xspace.events import UnusualError
from perfscope.analyzers.readers.xspace.planes import Line, Plane, read_lines
from perfscope.analyzers.readers.xspace.reader import read
from perfscope.model.errors import DataError
from tests.conftest import corpus_files
from tests.growth.test_growth import steep
from tests.growth.work import Work, counting
from tests.readers.wire import field


@pytest.fixture(scope="module", params=["with the library", "without it"], autouse=True)
def reading(request: pytest.FixtureRequest) -> Iterator[str]:
    """The native library reads a line, or numpy does."""
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "without it":
            patched.setattr(planes, "native_library", lambda: None)
        yield request.param


NAMES = {1: "run_id", 2: "hlo_op", 3: "_p", 4: "of no interest", 300: "name", 7: "text of a reference"}
WHOLE = st.one_of(st.integers(0, 300), st.integers(-(1 << 63), (1 << 64) - 1))
TEXT = st.one_of(st.sampled_from(["", "12", "dot.1", "überall"]), st.text(max_size=3))

value = st.one_of(
    st.builds(field, st.just(2), st.floats(allow_nan=False)),
    st.builds(field, st.sampled_from([3, 4, 7]), WHOLE),
    st.builds(field, st.just(7), st.sampled_from(sorted(NAMES))),
    st.builds(field, st.just(5), TEXT),
    st.builds(field, st.just(6), st.binary(max_size=3)),
)
key = st.builds(field, st.just(1), st.sampled_from(sorted(NAMES)))
stat = st.lists(st.one_of(key, value), max_size=4).map(b"".join)
plain = st.one_of(
    st.builds(field, st.sampled_from([1, 2, 3, 5]), st.integers(0, 1 << 60)),
    st.builds(field, st.just(4), stat),
)
unknown = st.one_of(
    st.builds(field, st.sampled_from([6, 20]), WHOLE),
    st.builds(field, st.sampled_from([1, 2, 4]), st.floats()),
    st.builds(field, st.sampled_from([3, 9]), st.binary(max_size=3)),
)
event = st.lists(st.one_of(plain, plain, plain, unknown), max_size=7).map(b"".join)
own = st.one_of(
    st.builds(field, st.just(1), WHOLE), st.builds(field, st.just(2), TEXT),
    st.builds(field, st.just(3), st.integers(0, 1 << 60)), st.builds(field, st.just(9), WHOLE),
)  # fmt: skip
lines = st.lists(st.one_of(own, st.builds(field, st.just(4), event)), max_size=8).map(b"".join)
ordinary = st.builds(
    lambda parts: b"".join(field(4, b"".join(part)) for part in parts),
    st.lists(st.lists(plain, min_size=1, max_size=5), min_size=1, max_size=6),
)


def of_line(content: bytes) -> tuple[Line, list[str]] | str:
    """The line, and its strings by code; or why it was refused."""
    strings: list[str] = []

    def code(text: str) -> int:
        if text not in strings:
            strings.append(text)
        return strings.index(text)

    plane = Plane(name="p", stats={}, names={}, metadata_stats={}, stat_names=NAMES, lines=((3, 3 + len(content)),))
    try:
        return next(read_lines(b"xxx" + content, plane, code, "file")), strings
    except DataError as error:
        return str(error)


def agree(content: bytes) -> None:
    fast = of_line(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planes, "native_library", lambda: None)
        patch.setattr(planes, "split", unusual)
        slow = of_line(content)
    if isinstance(slow, str) or isinstance(fast, str):
        assert fast == slow
        return
    assert facts(*fast) == facts(*slow)


def facts(line: Line, strings: list[str]) -> tuple[object, ...]:
    """All that a line holds, texts in place of their codes."""
    stats = {
        name: (rows.tolist(), [strings[code] if name in planes.TEXTS else code for code in values.tolist()])
        for name, (rows, values) in line.stats.items()
    }
    times = (line.start_ns.tolist(), line.end_ns.tolist())
    doubles = [part.tolist() for part in line.doubles]
    return line.id, line.name, line.ids[line.place].tolist(), times, stats, doubles, line.aggregated.tolist()


def unusual(*_: object) -> None:
    raise UnusualError


@given(lines)
def test_any_fields_in_any_order(content: bytes) -> None:
    agree(content)


@given(lines, st.data())
def test_damaged_bytes(content: bytes, data: st.DataObject) -> None:
    if content:
        position = data.draw(st.integers(0, len(content) - 1))
        changed = bytes([data.draw(st.integers(0, 255))])
        agree(content[:position] + changed + content[position + 1 :])
        agree(content[:position])


@given(ordinary)
def test_what_profilers_write_needs_no_protobuf(content: bytes) -> None:
    own_fields, begins = events.split(content, 0, len(content))
    assert own_fields == b""
    assert len(begins) > 1
    agree(content)


def test_batches_join(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"".join(
        field(4, field(1, 1 + n % 3) + field(2, n * 1_000_003) + field(3, n) + field(4, field(1, 1) + field(4, n)))
        for n in range(1_000)
    )
    monkeypatch.setattr(events, "_BATCH", 7)
    agree(content)


@pytest.mark.parametrize("path", corpus_files("xplane", "TraceLens*.xplane.pb.gz"), ids=lambda path: path.name)
def test_real_profiles_need_no_protobuf(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("read by protobuf")

    monkeypatch.setattr(planes, "_by_protobuf", refuse)
    read(path)


def test_work_is_linear(reading: str) -> None:
    one = field(4, field(1, 1) + field(2, 5_000) + field(3, 1_000) + field(4, field(1, 1) + field(4, 9)))

    def work_of(copies: int) -> Work:
        with counting() as work, work.of("line"):
            of_line(one * copies)
        return work

    work_of(1)
    works = [work_of(1_000 * copies) for copies in (1, 4, 16)]
    assert (works[-1].lines["line"] > 16_000) == (reading == "without it" or native.library() is None)
    assert steep(works) == {}
