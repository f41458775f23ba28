"""Our trimmed messages against the descriptors inside the installed jaxlib: numbers, names and types."""

from __future__ import annotations

import importlib.util
import mmap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.protos import pool
from perfscope.analyzers.protos._schema import fields, file_descriptor
from perfscope.analyzers.protos.xspace import SCHEMA
from tests.analyzers.readers.wire import field

pytestmark = pytest.mark.jax

SOURCE = "tsl/profiler/protobuf/xplane.proto"
LEFT_OUT = {"XSpace.hostnames"}
"""What must never be read."""


def jaxlib_libraries() -> list[Path]:
    found = importlib.util.find_spec("jaxlib")
    if found is None or not found.submodule_search_locations:
        pytest.skip("no jaxlib to compare with")
    return sorted(Path(found.submodule_search_locations[0]).glob("*.so"))


@cache
def described() -> Any:
    """The file descriptor of ``xplane.proto`` as jaxlib carries it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    begin = field(1, SOURCE)
    for library in jaxlib_libraries():
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            place = data.find(begin)
            if place >= 0:
                return FileDescriptorProto.FromString(data[place : _end(data, place + len(begin))])
    pytest.fail(f"no descriptor of {SOURCE} in jaxlib: look for its new name")


def _end(data: mmap.mmap, place: int) -> int:
    """Where a ``FileDescriptorProto`` ends whose name ends at ``place``: its fields 2 to 12 are all of kind 2."""
    while data[place] & 7 == 2 and 2 <= data[place] >> 3 <= 12:
        size, shift, place = 0, 0, place + 1
        while True:
            size |= (data[place] & 0x7F) << shift
            shift, place = shift + 7, place + 1
            if data[place - 1] < 0x80:
                break
        place += size
    return place


def all_fields(messages: Any, outer: str = "") -> Iterator[tuple[str, Any]]:
    for message in messages:
        for found in message.field:
            yield f"{outer}{message.name}.{found.name}", found
        yield from all_fields(message.nested_type, f"{outer}{message.name}.")


def test_every_field_is_as_jaxlib_has_it() -> None:
    theirs = dict(all_fields(described().message_type))
    ours = dict(all_fields(file_descriptor("xspace", SCHEMA).message_type))
    assert len(ours) == len(list(fields(SCHEMA)))
    for name, own in ours.items():
        assert name in theirs, f"{name} is gone from {SOURCE}"
        other = theirs[name]
        assert (own.number, own.type, own.label) == (other.number, other.type, other.label), name
        assert own.type_name.rpartition("xspace.")[2] == other.type_name.rpartition("profiler.")[2], name


def test_no_host_name_is_declared() -> None:
    declared = {f"{found.message}.{found.name}" for found in fields(SCHEMA)}
    assert not declared & LEFT_OUT
    assert set(dict(all_fields(described().message_type))) > LEFT_OUT


def test_the_pool_is_our_own() -> None:
    from google.protobuf import descriptor_pool

    from perfscope.analyzers.protos import message

    assert message("xspace.XSpace").DESCRIPTOR.file.pool is pool()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("xspace.XSpace")
