"""The walk over many messages at once, against protobuf's own decoder."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[attr-defined]
from google.protobuf.struct_pb2 import Value
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.readers.perfetto_trace.walk import Buffer, varint, walk
from perfscope.profiler.errors import DataError

NUMBERS = st.integers(0, 2**64 - 1)


def encoded(value: int, padding: int = 0) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(min(padding, 10 - len(out))):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 9)), min_size=1))
def test_varints_of_any_length(values: list[tuple[int, int]]) -> None:
    parts = [encoded(value, padding) for value, padding in values]
    starts = np.cumsum([0, *map(len, parts)])
    buffer = Buffer(b"".join(parts))
    found, behind = varint(buffer, starts[:-1])
    assert found.view(np.uint64).tolist() == [value for value, _ in values]
    assert behind.tolist() == starts[1:].tolist()
    assert [_DecodeVarint(buffer.data, int(start)) for start in starts[:-1]] == [
        (value, int(end)) for (value, _), end in zip(values, starts[1:], strict=True)
    ]


@given(
    st.lists(
        st.builds(
            FieldDescriptorProto, name=st.text(max_size=20), number=st.integers(-(2**31), 2**31 - 1),
            oneof_index=st.integers(0, 2**31 - 1), json_name=st.text(max_size=300),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_fields_of_messages(messages: list[FieldDescriptorProto]) -> None:
    parts = [one.SerializeToString(deterministic=True) for one in messages]
    ends = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    buffer = Buffer(b"".join(parts))
    fields = walk(buffer, ends[:-1], ends[1:], "t")
    assert fields.of(3).numbers().column(len(parts), 0).tolist() == [one.number for one in messages]
    assert fields.of(9).numbers().column(len(parts), 0).tolist() == [one.oneof_index for one in messages]
    for number, name in ((1, "name"), (10, "json_name")):
        held = fields.of(number).messages()
        texts = {row: buffer.text(start, end) for row, start, end in zip(held.row, held.a, held.b, strict=True)}
        assert [texts.get(row, "") for row in range(len(parts))] == [getattr(one, name) for one in messages]


@given(st.floats(allow_nan=False))
def test_fixed_numbers(value: float) -> None:
    raw = Value(number_value=value).SerializeToString()
    found = walk(Buffer(raw), np.array([0]), np.array([len(raw)]), "t").of(2)
    assert found.a.view(np.float64).tolist() == [value]


def is_one_line(said: str) -> None:
    assert said.startswith("t: cut off or corrupt")
    assert "\n" not in said


@given(st.binary(max_size=60))
def test_any_bytes_are_walked_or_refused(raw: bytes) -> None:
    buffer = Buffer(raw)
    try:
        fields = walk(buffer, np.array([0]), np.array([len(raw)]), "t")
    except DataError as error:
        is_one_line(str(error))
        return
    held = fields.messages()
    assert ((held.a <= held.b) & (held.b <= len(raw))).all()


@pytest.mark.parametrize(
    "raw",
    [b"\x08", b"\x08\x80", b"\x0a\x05abc", b"\x0d123", b"\x09" + b"1" * 7, b"\x0f", b"\x00\x00",
     b"\x0a" + b"\xff" * 9 + b"\x7f"],
)  # fmt: skip
def test_messages_that_reach_beyond_their_end(raw: bytes) -> None:
    with pytest.raises(DataError, match="reaches beyond its end, or is none"):
        walk(Buffer(raw + b"behind"), np.array([0]), np.array([len(raw)]), "t")
