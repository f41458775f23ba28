"""Our trimmed protos against the descriptors that lie, serialized, inside the installed jaxlib."""

from __future__ import annotations

import importlib.util
import mmap
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from perfscope.analyzers.hlo.protos import hlo, pool
from perfscope.analyzers.hlo.protos.schema import SCALARS, fields, file_descriptor
from perfscope.analyzers.hlo.protos.xspace import SCHEMA
from tests.readers.wire import field

pytestmark = pytest.mark.jax

FILES = ("xla/service/hlo.proto", "xla/xla_data.proto")
_WIRE = {1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2, 9: 2, 10: 0, 11: 0, 12: 2, 14: 0}
"""Fields of FileDescriptorProto and how each is on the wire."""


WRITTEN_AGAINST = (0, 10)
"""The jaxlib whose fields ours were taken from; an older one lacks the newest of them."""


def jaxlib_version() -> tuple[int, ...]:
    return tuple(int(part) for part in version("jaxlib").split(".")[:2])


def varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, position


def scraped(binary: bytes, name: str) -> FileDescriptorProto | None:
    """The descriptor of a file: it begins with its name, and goes on while its fields make sense."""
    begin = binary.find(b"\x0a" + bytes([len(name)]) + name.encode())
    if begin < 0:
        return None
    position, first = begin, True
    while True:
        key, after = varint(binary, position)
        field, kind = key >> 3, key & 7
        if _WIRE.get(field) != kind or (field == 1 and not first):
            break
        length, after = varint(binary, after)
        position, first = (after + length if kind == 2 else after), False
    return FileDescriptorProto.FromString(binary[begin:position])


def messages(file: FileDescriptorProto) -> dict[str, Any]:
    """Messages by name, nested ones as ``Outer.Inner``."""
    found: dict[str, Any] = {}
    waiting = [("", one) for one in file.message_type]
    while waiting:
        outer, one = waiting.pop()
        found[outer + one.name] = one
        waiting += [(f"{outer}{one.name}.", inner) for inner in one.nested_type]
    return found


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    jaxlib = pytest.importorskip("jaxlib", reason="jaxlib is not installed")
    library = next(Path(jaxlib.__file__).parent.glob("libjax_common.*"), None)
    if library is None:
        pytest.skip("this jaxlib has no libjax_common")
    binary = library.read_bytes()
    found = {name: scraped(binary, name) for name in FILES}
    missing = [name for name, file in found.items() if file is None]
    assert not missing, f"jaxlib has no descriptor of {missing}"
    return {key: one for file in found.values() if file is not None for key, one in messages(file).items()}


def test_every_field_we_read_is_theirs(theirs: dict[str, Any]) -> None:
    assert len(theirs) > 50
    wrong, newer = [], []
    ours = list(fields(hlo.SCHEMA))
    for declared in ours:
        known = theirs[declared.message].field if declared.message in theirs else ()
        match = next((one for one in known if declared.name == one.name or declared.number == one.number), None)
        if match is None:
            newer.append(f"{declared.message}.{declared.name}")
            continue
        kind = FieldDescriptorProto.Type.Name(match.type).removeprefix("TYPE_").lower()
        expected = declared.type if declared.type in (*SCALARS, "enum") else "message"
        repeated = match.label == FieldDescriptorProto.LABEL_REPEATED
        target = match.type_name.removeprefix(".xla.")
        if (match.name, match.number, kind, repeated) != (
            declared.name,
            declared.number,
            expected,
            declared.repeated,
        ) or (kind == "message" and target != declared.type):
            wrong.append(f"{declared.message}.{declared.name}: {match.number} {match.name} {kind} {target}")
    assert wrong == []
    assert len(ours) > 150
    if jaxlib_version() >= WRITTEN_AGAINST:
        assert newer == []


def test_a_wrong_number_would_be_seen(theirs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hlo, "SCHEMA", "OpMetadata\n  3 string op_name\n")
    with pytest.raises(AssertionError, match=r"OpMetadata\.op_name: 2 op_name string"):
        test_every_field_we_read_is_theirs(theirs)


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

    from perfscope.analyzers.hlo.protos import message

    assert message("xspace.XSpace").DESCRIPTOR.file.pool is pool()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("xspace.XSpace")
