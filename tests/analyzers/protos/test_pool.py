"""The trimmed protos: private, as written, and refused in one line when they are damaged."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perfscope.analyzers.protos import decode, message, pool
from perfscope.analyzers.protos._schema import Field, fields, file_descriptor
from perfscope.profiler.errors import DataError


def test_the_pool_is_ours_alone() -> None:
    from google.protobuf.descriptor_pool import Default

    assert message("hlo.HloProto") is message("hlo.HloProto")
    assert pool().FindMessageTypeByName("hlo.HloProto") is message("hlo.HloProto").DESCRIPTOR
    with pytest.raises(KeyError):
        Default().FindMessageTypeByName("hlo.HloProto")


def test_importing_the_readers_does_not_load_protobuf() -> None:
    program = (
        "import sys, perfscope.analyzers.readers.hlo_proto, perfscope.analyzers.readers.hlo_text\n"
        "assert not [name for name in sys.modules if name.startswith('google')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


SCHEMA = """
Outer
  1 int64 number
  3 *Outer.Inner parts
Outer.Inner
  2 enum kind
  4 *string names
"""


def test_a_schema_means_what_it_says() -> None:
    assert list(fields(SCHEMA)) == [
        Field(message="Outer", number=1, type="int64", name="number", repeated=False),
        Field(message="Outer", number=3, type="Outer.Inner", name="parts", repeated=True),
        Field(message="Outer.Inner", number=2, type="enum", name="kind", repeated=False),
        Field(message="Outer.Inner", number=4, type="string", name="names", repeated=True),
    ]
    (outer,) = file_descriptor("mine", SCHEMA).message_type
    assert [(one.name, one.number, one.type_name) for one in outer.field] == [
        ("number", 1, ""),
        ("parts", 3, ".mine.Outer.Inner"),
    ]
    assert [(one.name, one.number) for one in outer.nested_type[0].field] == [("kind", 2), ("names", 4)]


def test_fields_we_do_not_know_are_passed_over() -> None:
    assert decode("hlo.SourceTarget", b"\x08\x01\x98\x06\x07\x10\x02", "x").target == 2


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05ab", b"\xff\xff", b"\x0a\x02\xff\xfe"])
def test_damaged_bytes_are_one_line(data: bytes) -> None:
    with pytest.raises(DataError) as caught:
        decode("hlo.HloComputationProto", data, "a.pb")
    assert str(caught.value) == "a.pb: cut off or corrupt: not a HloComputationProto"
