"""64-bit ELF shared objects: read the requirements of one, and write a small one that satisfies them.

Layouts: System V ABI, chapters 4 and 5; symbol versions: Linux Standard Base, core, chapter 10.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from perfscope.model.errors import DataError

_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _SONAME = 1, 4, 5, 6, 10, 11, 14
_GNU_HASH, _VERSYM, _VERDEF, _VERDEFNUM, _VERNEED, _VERNEEDNUM = (
    0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF,
)  # fmt: skip
_PAGE = 0x1000
_GLOBAL_FUNCTION = 0x12
MAX_SYMBOLS = 1 << 20
MAX_LIBRARIES = 1 << 12


class RequiredSymbol(Struct, frozen=True, kw_only=True):
    """A symbol that an object looks up in others."""

    name: str
    version: str = ""
    """Empty if any version is accepted."""
    library: str = ""
    """Library that has this version; empty without one: any library may have it."""


class ElfRequirements(Struct, frozen=True, kw_only=True):
    """Libraries and symbols that an object needs."""

    libraries: tuple[str, ...]
    symbols: tuple[RequiredSymbol, ...]


class StubFunction(Struct, frozen=True, kw_only=True):
    """A function of a written object. It ignores its arguments."""

    name: str
    version: str = ""
    number: int = 0
    """Number that it returns, unless it returns a text."""
    text: bool = False
    """Return the address of an empty text."""


def elf_requirements(path: Path) -> ElfRequirements:
    """The requirements of the object in a file. ``DataError`` if it is not such an object."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse_requirements(data)
    except (OSError, ValueError, KeyError, StopIteration, struct.error, IndexError, OverflowError) as error:
        raise DataError(f"{path.name}: not a readable 64-bit shared object ({error})") from error


def _parse_requirements(data: mmap.mmap) -> ElfRequirements:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("another format")
    headers, size, count = struct.unpack_from("<Q14xHH", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    parts = [struct.unpack_from("<IIQQQQQQ", data, headers + size * number) for number in range(count)]
    loads = [part for part in parts if part[0] == _LOAD]

    def offset(address: int) -> int:
        for _, _, start, where, _, length, _, _ in loads:
            if where <= address < where + length:
                return int(start + address - where)
        raise ValueError("an address that is not in the file")

    dynamic = next(part for part in parts if part[0] == _DYNAMIC)
    entries = [struct.unpack_from("<qQ", data, dynamic[2] + 16 * number) for number in range(dynamic[5] // 16)]
    first: dict[int, int] = {}
    for tag, value in entries:
        first.setdefault(tag, value)
    texts, symbols = offset(first[_STRTAB]), offset(first[_SYMTAB])

    def text(offset_in_texts: int) -> str:
        return data[texts + offset_in_texts : data.find(b"\0", texts + offset_in_texts)].decode()

    libraries = tuple(text(value) for tag, value in entries if tag == _NEEDED)
    versions: dict[int, tuple[str, str]] = {}
    position = offset(first[_VERNEED]) if _VERNEED in first else 0
    for _ in range(min(first.get(_VERNEEDNUM, 0), MAX_LIBRARIES)):
        _, several, library, aux, following = struct.unpack_from("<HHIII", data, position)
        auxiliary = position + aux
        for _ in range(several):
            _, _, number, name, further = struct.unpack_from("<IHHII", data, auxiliary)
            versions[number] = (text(name), text(library))
            auxiliary += further
        position += following
    # undefined symbols come before the first one that the object defines
    (mine,) = struct.unpack_from("<4xI", data, offset(first[_GNU_HASH]))
    marks = offset(first[_VERSYM]) if _VERSYM in first else None
    wanted = []
    for number in range(1, min(mine, MAX_SYMBOLS)):
        name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, symbols + 24 * number)
        if section or info >> 4 != 1:
            continue  # defined here, or weak: not required
        mark = 0 if marks is None else struct.unpack_from("<H", data, marks + 2 * number)[0] & 0x7FFF
        version, library = versions.get(mark, ("", ""))
        wanted.append(RequiredSymbol(name=text(name), version=version, library=library))
    return ElfRequirements(libraries=libraries, symbols=tuple(wanted))


def shared_object(name: str, answers: Sequence[StubFunction]) -> bytes:
    """A shared object for x86-64 with that SONAME and these functions."""
    texts = bytearray(b"\0")

    def text(word: str) -> int:
        position = len(texts)
        texts.extend(word.encode() + b"\0")
        return position

    versions = sorted({answer.version for answer in answers if answer.version})
    soname = text(name)
    code, starts = _code(answers)
    named = [text(answer.name) for answer in answers]
    version_names = {version: text(version) for version in versions}
    definitions = _version_definitions(name, soname, versions, version_names) if versions else b""
    numbers = {version: index for index, version in enumerate(versions, start=2)}
    marks = struct.pack(f"<{len(answers) + 1}H", 0, *(numbers.get(answer.version, 1) for answer in answers))
    table = struct.pack("<IIII", 1, len(answers) + 1, 1 if answers else 0, 0)
    # one bucket: a chain through all symbols
    table += struct.pack(
        f"<{len(answers)}I", *(index + 1 if index < len(answers) else 0 for index in range(1, len(answers) + 1))
    )
    header = 64 + 56 * 4
    blocks = {"hash": table, "texts": bytes(texts), "marks": marks, "definitions": definitions, "code": code}
    offsets, position = {}, header
    symbols_size = 24 * (len(answers) + 1)
    for label, length in [("symbols", symbols_size), *((label, len(block)) for label, block in blocks.items())]:
        position = -(-position // 16) * 16
        offsets[label] = position
        position += length
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", word, _GLOBAL_FUNCTION, 0, 1, offsets["code"] + start, 8)
        for word, start in zip(named, starts, strict=True)
    )
    end = position
    where = -(-end // _PAGE) * _PAGE
    entries = [
        (_SONAME, soname), (_HASH, offsets["hash"]), (_STRTAB, offsets["texts"]), (_SYMTAB, offsets["symbols"]),
        (_STRSZ, len(texts)), (_SYMENT, 24), (_VERSYM, offsets["marks"]),
        *([(_VERDEF, offsets["definitions"]), (_VERDEFNUM, len(versions) + 1)] if versions else []), (0, 0),
    ]  # fmt: skip
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    data = bytearray(where + len(dynamic))
    data[:64] = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0
    )  # fmt: skip
    parts = [
        (_LOAD, 5, 0, 0, 0, end, end, _PAGE),
        (_LOAD, 6, where, where, where, len(dynamic), len(dynamic), _PAGE),
        (_DYNAMIC, 6, where, where, where, len(dynamic), len(dynamic), 8),
        (_STACK, 6, 0, 0, 0, 0, 0, 16),
    ]
    data[64:header] = b"".join(struct.pack("<IIQQQQQQ", *part) for part in parts)
    for label, block in {**blocks, "symbols": symbols}.items():
        data[offsets[label] : offsets[label] + len(block)] = block
    data[where:] = dynamic
    return bytes(data)


def _code(answers: Sequence[StubFunction]) -> tuple[bytes, list[int]]:
    """Functions of eight bytes each with their offsets; after them a zero byte as the empty text."""
    empty = 8 * len(answers)
    code = bytearray()
    for answer in answers:
        if answer.text:
            code += b"\x48\x8d\x05" + struct.pack("<i", empty - len(code) - 7) + b"\xc3"  # lea rax, [rip + n]; ret
        else:
            code += b"\xb8" + struct.pack("<I", answer.number) + b"\xc3\x90\x90"  # mov eax, n; ret
    return bytes(code) + bytes(8), [8 * index for index in range(len(answers))]


def _version_definitions(name: str, soname: int, versions: Sequence[str], names: dict[str, int]) -> bytes:
    rows = [
        (1, 1, name, soname),
        *((0, index, version, names[version]) for index, version in enumerate(versions, start=2)),
    ]
    return b"".join(
        struct.pack("<HHHHIII", 1, flags, number, 1, _elf_hash(word), 20, 0 if row == len(rows) - 1 else 28)
        + struct.pack("<II", text_offset, 0)
        for row, (flags, number, word, text_offset) in enumerate(rows)
    )


def _elf_hash(word: str) -> int:
    """Hash function of the ABI."""
    value = 0
    for letter in word.encode():
        value = (value << 4) + letter
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high if high else value
    return value & 0xFFFFFFFF
