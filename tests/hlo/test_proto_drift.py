"""Our trimmed protos against the descriptors that lie, serialized, inside the installed jaxlib."""

from __future__ import annotations

import mmap
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from perfscope.analyzers.hlo.protos import hlo, message, pool, xspace
from perfscope.analyzers.hlo.protos.schema import SCALARS, fields

pytestmark = pytest.mark.jax

HLO = ("xla/service/hlo.proto", "xla/xla_data.proto")
XSPACE = ("tsl/profiler/protobuf/xplane.proto",)
_WIRE = {1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2, 9: 2, 10: 0, 11: 0, 12: 2, 14: 0}
"""Fields of FileDescriptorProto and how each is on the wire."""
WRITTEN_AGAINST = (0, 10)
"""The jaxlib whose fields ours were taken from; an older one lacks the newest of them."""
LEFT_OUT = "XSpace.hostnames"
"""Fields that must never be read."""


def varint(data: mmap.mmap, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, position


def scraped(binary: mmap.mmap, name: str) -> FileDescriptorProto | None:
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


@cache
def theirs(files: tuple[str, ...]) -> dict[str, Any]:
    """Messages that jaxlib carries of these files, by name, nested ones as ``Outer.Inner``."""
    jaxlib = pytest.importorskip("jaxlib", reason="jaxlib is not installed")
    found: dict[str, Any] = {}
    missing = set(files)
    for library in sorted(Path(jaxlib.__file__).parent.glob("*.so")):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as binary:
            for name in sorted(missing):
                described = scraped(binary, name)
                waiting = [] if described is None else [("", each) for each in described.message_type]
                missing -= set() if described is None else {name}
                while waiting:
                    outer, each = waiting.pop()
                    found[outer + each.name] = each
                    waiting += [(f"{outer}{each.name}.", inner) for inner in each.nested_type]
    assert not missing, f"jaxlib has no descriptor of {missing}"
    return found


@pytest.mark.parametrize(("module", "files"), [(hlo, HLO), (xspace, XSPACE)])
def test_every_field_we_read_is_theirs(module: Any, files: tuple[str, ...]) -> None:
    wrong, newer = [], []
    for declared in fields(module.SCHEMA):
        known = theirs(files)[declared.message].field if declared.message in theirs(files) else ()
        match = next((each for each in known if declared.name == each.name or declared.number == each.number), None)
        if match is None:
            newer.append(f"{declared.message}.{declared.name}")
            continue
        kind = FieldDescriptorProto.Type.Name(match.type).removeprefix("TYPE_").lower()
        expected = declared.type if declared.type in (*SCALARS, "enum") else "message"
        repeated = match.label == FieldDescriptorProto.LABEL_REPEATED
        target = match.type_name.rpartition(".xla.")[2].rpartition("profiler.")[2]
        same = (match.name, match.number, kind, repeated) == (
            declared.name,
            declared.number,
            expected,
            declared.repeated,
        )
        if not same or (kind == "message" and target != declared.type):
            wrong.append(f"{declared.message}.{declared.name}: {match.number} {match.name} {kind} {target}")
    assert wrong == []
    if tuple(int(part) for part in version("jaxlib").split(".")[:2]) >= WRITTEN_AGAINST:
        assert newer == []


def test_a_wrong_number_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hlo, "SCHEMA", "OpMetadata\n  3 string op_name\n")
    with pytest.raises(AssertionError, match=r"OpMetadata\.op_name: 2 op_name string"):
        test_every_field_we_read_is_theirs(hlo, HLO)


def test_no_host_name_is_declared() -> None:
    declared = {f"{found.message}.{found.name}" for found in fields(xspace.SCHEMA)}
    assert LEFT_OUT not in declared
    assert LEFT_OUT in {f"{name}.{each.name}" for name, found in theirs(XSPACE).items() for each in found.field}


def test_the_pool_is_our_own() -> None:
    assert message("xspace.XSpace").DESCRIPTOR.file.pool is pool()
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("xspace.XSpace")
