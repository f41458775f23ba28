"""Conversion of a written schema to a ``FileDescriptorProto``.

A line without indentation names a message (``Outer.Inner`` for a nested one, after its outer one); the indented lines
below it are its fields, ``<number> <type> <name>``, with ``*`` before the type of a repeated field and ``?`` before
alternatives (the ``oneof`` with the name ``value``). ``enum`` is read as the integer in the data, so that new values
are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

SCALARS = ("bool", "bytes", "double", "fixed64", "float", "int32", "int64", "string", "uint32", "uint64")


class Field(Struct, frozen=True, kw_only=True):
    """One field as written."""

    message: str
    number: int
    type: str
    """A scalar type, ``enum``, or the name of a message."""
    name: str
    repeated: bool
    alternative: bool = False


def fields(schema: str) -> Iterator[Field]:
    """The fields of a schema in written order."""
    message = ""
    for line in schema.splitlines():
        if not line.strip():
            continue
        if not line[0].isspace():
            message = line.strip()
            continue
        number, kind, name = line.split()
        yield Field(
            message=message,
            number=int(number),
            type=kind.lstrip("*?"),
            name=name,
            repeated=kind.startswith("*"),
            alternative=kind.startswith("?"),
        )


def file_descriptor(package: str, schema: str) -> Any:
    """The schema as a ``FileDescriptorProto`` of proto3, its messages in ``package``."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

    file = FileDescriptorProto(name=f"perfscope/{package}.proto", package=package, syntax="proto3")
    declared: dict[str, Any] = {}
    for line in schema.splitlines():
        if line and not line[0].isspace():
            outer, _, inner = line.strip().rpartition(".")
            declared[line.strip()] = (
                declared[outer].nested_type.add(name=inner) if outer else file.message_type.add(name=inner)
            )
    for field in fields(schema):
        added = declared[field.message].field.add(name=field.name, number=field.number)
        added.label = FieldDescriptorProto.LABEL_REPEATED if field.repeated else FieldDescriptorProto.LABEL_OPTIONAL
        if field.alternative:
            if not declared[field.message].oneof_decl:
                declared[field.message].oneof_decl.add(name="value")
            added.oneof_index = 0
        if field.type == "enum":
            added.type = FieldDescriptorProto.TYPE_INT32
        elif field.type in SCALARS:
            added.type = FieldDescriptorProto.Type.Value(f"TYPE_{field.type.upper()}")
        else:
            added.type = FieldDescriptorProto.TYPE_MESSAGE
            added.type_name = f".{package}.{field.type}"
    return file
