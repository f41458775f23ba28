"""The wire format of protocol buffers, against a reader that is too simple to be wrong."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfscope.model.wire import BYTES, FIXED32, FIXED64, VARINT, WireError, fields, packed, varint, write_varint

NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
VARINTS = st.builds(lambda body, last: bytes([*(b | 0x80 for b in body), last & 0x7F]),
                    st.lists(st.integers(0, 127), max_size=11), st.integers(0, 127))  # fmt: skip
FIELDS = st.one_of(
    st.builds(lambda number, value: write_varint(number << 3 | VARINT) + value, st.integers(0, 70), VARINTS),
    st.builds(lambda number, text: write_varint(number << 3 | BYTES) + write_varint(len(text)) + text,
              st.integers(0, 2**29), st.binary(max_size=200)),
    st.builds(lambda number, text: write_varint(number << 3 | FIXED64) + text,
              st.integers(1, 70), st.binary(min_size=8, max_size=8)),
    st.builds(lambda number, text: write_varint(number << 3 | FIXED32) + text,
              st.integers(1, 70), st.binary(min_size=4, max_size=4)),
)  # fmt: skip
MESSAGES = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda parts, cut: b"".join(parts)[: None if cut is None else -cut],
              st.lists(FIELDS, max_size=6), st.one_of(st.none(), st.integers(1, 12))),
)  # fmt: skip


def expected_varint(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    window = data[at : min(end, at + 10)]
    size = next((index + 1 for index, byte in enumerate(window) if byte < 0x80), None)
    if size is None:
        return None
    bits = "".join(f"{byte & 0x7F:07b}" for byte in reversed(window[:size]))
    return int(bits, 2) % 2**64, at + size


def expected_fields(data: bytes) -> tuple[list[tuple[int, int, int, int, int]], bool]:
    """The whole fields, and whether that is all there is."""
    found: list[tuple[int, int, int, int, int]] = []
    at = 0
    while at < len(data):
        key = expected_varint(data, at, len(data))
        if key is None or not key[0] >> 3:
            return found, False
        number, kind, start = key[0] >> 3, key[0] & 7, key[1]
        length = {VARINT: expected_varint(data, start, len(data)), BYTES: expected_varint(data, start, len(data)),
                  FIXED64: (8, start), FIXED32: (4, start)}.get(kind)  # fmt: skip
        if length is None:
            return found, False
        start, end = (start, length[1]) if kind == VARINT else (length[1], length[1] + length[0])
        if end > len(data):
            return found, False
        found.append((number, kind, at, start, end))
        at = end
    return found, True


@given(st.one_of(VARINTS, st.binary(max_size=14)), st.integers(0, 3), st.integers(0, 3))
@example(b"\x80" * 8 + b"\x01", 0, 0)
@example(b"\x80" * 9 + b"\x01", 0, 0)
@example(b"\xff" * 9 + b"\x7f", 0, 0)
@example(b"\x80" * 10 + b"\x01", 0, 0)
def test_a_number_is_read_or_refused(data: bytes, before: int, after: int) -> None:
    data, end = bytes(before) + data + bytes(after), before + len(data)
    expected = expected_varint(data, before, end)
    if expected is None:
        with pytest.raises(WireError) as caught:
            varint(data, before, end)
        assert caught.value.offset == before
    else:
        assert varint(data, before, end) == expected


@given(NUMBERS)
def test_what_is_written_is_read(value: int) -> None:
    written = write_varint(value)
    assert varint(written, 0, len(written)) == (value, len(written))
    assert write_varint(value - 2**64) == written


@given(st.lists(NUMBERS, max_size=9))
def test_packed_numbers(values: list[int]) -> None:
    data = b"".join(map(write_varint, values))
    assert list(packed(data, 0, len(data))) == values
    if data:
        with pytest.raises(WireError):
            list(packed(data + b"\x80", 0, len(data) + 1))


@given(MESSAGES)
def test_fields_are_read_up_to_the_first_that_is_not_whole(data: bytes) -> None:
    expected, whole = expected_fields(data)
    found = fields(data, 0, len(data))
    for field in expected:
        assert tuple(next(found)) == field
    if whole:
        assert next(found, None) is None
        return
    with pytest.raises(WireError) as caught:
        next(found)
    assert caught.value.offset <= len(data)


@given(st.lists(FIELDS, max_size=6).map(b"".join), st.data())
def test_a_head_gives_the_fields_that_the_whole_message_has(data: bytes, draw: st.DataObject) -> None:
    expected, whole = expected_fields(data)
    if not whole:
        return
    end = draw.draw(st.integers(0, len(data)))
    found = [tuple(field) for field in fields(data, 0, end, lenient=True)]
    assert found == expected[: len(found)]
    assert len(found) >= sum(field[4] <= end for field in expected)


@pytest.mark.parametrize("data", [b"\x80" * 10 + b"\x01", b"\x0b", b"\x0c", b"\x00\x01", b"\x02\x00", b"\x0f"])
def test_a_head_that_holds_no_field_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        list(fields(data, 0, len(data), lenient=True))
