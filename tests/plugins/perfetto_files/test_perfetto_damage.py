"""The Perfetto reader on damaged and hostile files: read, or refused in one line that names the file."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from perfscope.plugins.exports.export import Subject, export
from perfscope.plugins.exports.wire import bytes_field, number_field, text_field
from perfscope.plugins.perfetto_files import packets
from perfscope.plugins.perfetto_files import reader as perfetto_reader
from tests.plugins.exports.traces import everything
from tests.readers import test_damage as damage
from tests.readers.refusals import refused


def said_of(folder: Path, content: bytes) -> str:
    return refused(perfetto_reader.read, folder / "bad.pftrace", content)


def whole_file(folder: Path) -> bytes:
    export(Subject(traces=(everything(),)), "perfetto", folder / "whole.pftrace")
    return (folder / "whole.pftrace").read_bytes()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty file"),
        (b"hello", "cut off or corrupt: byte 0 is not the begin of a packet"),
        (b"\x0a", "cut off or corrupt: truncated varint at byte 1"),
        (b"\x0a" + b"\x80" * 20, "cut off or corrupt: varint of more than 10 bytes"),
        (b"\x0a\x05abc", "cut off: byte 2 claims a packet of 5 bytes where 3 are left"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "cut off: byte 10 claims a packet of 9,223,372,036,854,775,807"),
        (b"\x0a\x03\x5a\x05a", "cut off or corrupt: not a TracePacket"),
        (b"\x0a\x02\x50\x01", "1 packets, but no slices and no counters"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in said_of(tmp_path, content)


def packed(content: bytes) -> bytes:
    return bytes_field(1, bytes_field(50, content))


def test_compressed_packets_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_of(tmp_path, packed(b"no zlib")) == "corrupt: invalid compressed packets"
    assert "do not end" in said_of(tmp_path, packed(zlib.compress(whole_file(tmp_path))[:-20]))
    assert "within compressed packets" in said_of(tmp_path, packed(zlib.compress(packed(zlib.compress(b"")))))
    monkeypatch.setattr(packets, "LARGEST_UNPACKED", 1 << 16)
    bomb = packed(zlib.compress(bytes(1 << 24), 9))
    assert len(bomb) < 1 << 16
    assert "compressed packets of more than 65,536 bytes: refused" in said_of(tmp_path, bomb)
    half = zlib.compress(bytes_field(1, text_field(47, "x" * 40_000)))
    assert "refused" in said_of(tmp_path, packed(half) + packed(half))


def test_a_huge_packet_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "LARGEST_PACKET", 1000)
    assert said_of(tmp_path, bytes_field(1, text_field(33, "x" * 2000))) == "a packet of 2,004 bytes: refused"


def test_packets_that_cannot_be_unpacked_are_said(tmp_path: Path) -> None:
    assert "1 packets compressed with zstandard" in said_of(
        tmp_path, bytes_field(1, bytes_field(133, b"\x28\xb5\x2f\xfd"))
    )


def event(kind: int, time: int, *more: bytes) -> bytes:
    return bytes_field(1, number_field(8, time), bytes_field(11, number_field(9, kind), number_field(11, 1), *more))


def test_numbers_out_of_all_bounds(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    huge = bytes_field(4, text_field(10, "External id"), number_field(3, (1 << 64) - 1))
    text = bytes_field(4, text_field(10, "device"), text_field(6, "9" * 5000))
    late = event(1, 1 << 63) + event(2, 1 << 63)
    path.write_bytes(event(1, 5, huge, text, text_field(22, "kernel")) + event(2, 9) + late)
    (trace,) = perfetto_reader.read(path)
    trace.check()
    assert trace.source.unplaced == {"impossible times": 2}


def test_tracks_in_a_circle_end(tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    loop = b"".join(
        bytes_field(1, bytes_field(60, number_field(1, one), number_field(5, other))) for one, other in ((1, 2), (2, 1))
    )
    path.write_bytes(loop + event(1, 5) + event(2, 9))
    (trace,) = perfetto_reader.read(path)
    assert len(trace.rows["slices"]) == 1


def test_what_claims_to_be_ours_is_not_believed(tmp_path: Path) -> None:
    """A source event may hold anything: it is taken as far as it makes sense."""
    path = tmp_path / "t.pftrace"
    for said in ('{"rank": -5, "recorded": [1, "everything", "memory"], "format": 3}', "{", "[1]", "[" * 5000):
        source = event(
            3, 1, text_field(22, "perfscope.source"), bytes_field(4, text_field(10, "source"), text_field(6, said))
        )
        path.write_bytes(source + event(1, 5, text_field(22, "kernel")) + event(2, 9))
        (trace,) = perfetto_reader.read(path)
        trace.check()
        assert trace.source.rank is None
        assert trace.recorded <= {"memory"}


@pytest.fixture
def intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = whole_file(tmp_path)
    monkeypatch.setitem(damage.FORMATS, "pftrace", lambda: content)


@pytest.mark.usefixtures("intact")
def test_changed_bytes() -> None:
    damage.changed_bytes("pftrace")


@pytest.mark.usefixtures("intact")
def test_the_command_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage.test_the_command_refuses_in_one_line("pftrace", tmp_path, capsys)
