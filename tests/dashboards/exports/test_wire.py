"""Bytes written by columns, against protobuf's own reading of them."""

from __future__ import annotations

import numpy as np
from google.protobuf.struct_pb2 import ListValue
from google.protobuf.wrappers_pb2 import BytesValue, DoubleValue, Int64Value, UInt64Value
from hypothesis import given
from hypothesis import strategies as st

from perfscope.dashboards.exports.wire import FIXED64, VARINT, fixed64, nested, number_field, records, tag, varints

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(INT64, min_size=1))
def test_numbers_of_one_width_read_back(values: list[int]) -> None:
    rows = records([tag(1, VARINT), varints(np.array(values, np.int64))], len(values))
    assert [Int64Value.FromString(row).value for row in rows] == values
    assert len({len(row) for row in rows}) == 1


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_unsigned_numbers_read_back(values: list[int]) -> None:
    rows = records([tag(1, VARINT), varints(np.array(values, np.uint64))], len(values))
    assert [UInt64Value.FromString(row).value for row in rows] == values


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_doubles_read_back(values: list[float]) -> None:
    rows = records([tag(1, FIXED64), fixed64(np.array(values))], len(values))
    assert [DoubleValue.FromString(row).value for row in rows] == values


def test_messages_carry_their_length() -> None:
    values = np.array([True, False])
    rows = records(nested(1, [number_field(4, 1), b""]), 2)
    assert [ListValue.FromString(row).values[0].bool_value for row in rows] == [True, True]
    assert records([tag(4, VARINT), varints(values)], 2) == [b"\x20\x01", b"\x20\x00"]
    assert varints(np.empty(0, np.int64)).shape == (0, 1)
    assert BytesValue.FromString(records(nested(1, [b"x" * 200]), 1)[0]).value == b"x" * 200
