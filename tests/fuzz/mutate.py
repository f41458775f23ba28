"""Mutations that keep a file's structure, so that what is changed is read and not refused at its first byte."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import sqlite3
from collections.abc import Callable
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

NUMBERS = (0, 1, -1, 2, 7, 127, 255, 256, 2**15, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**62, 2**63 - 1, 2**63,
           -(2**63), 2**64 - 1, 10**30, 0.5, -0.0, 1e18, 1e300, float("inf"), float("nan"))  # fmt: skip
TEXTS = ("", "0", "-1", "x" * 5_000, "\x00", "\x1b[31m", "\ud800", "<script>", "a\nb", "../..", "[0, 1]", "9" * 30,
         "%s%n", "\u202e", "nccl:all_reduce", "ProfilerStep#1")  # fmt: skip
OTHERS = (None, True, [], {}, [[]], [None], {"": None})
COUNTS = (1, 1, 1, 2, 3, 6)
"""Changes of an input: most readers refuse a file in which much is wrong."""
MOST_DEPTH = 24
MOST_COPIES = 6
GZIPPED = 0.03
"""Share of the files that are packed afterwards; of those half are damaged once more."""
RAW = 0.12
"""Share whose bytes are changed without regard to structure."""


def mutated(content: bytes, structured: Mutation, random: Random) -> bytes:
    """One to six changes of ``content``."""
    if random.random() < RAW:
        result = raw(content, random)
    else:
        try:
            result = structured(content, random)
        except Exception:  # the seed is of another kind than its folder: its bytes are changed
            result = raw(content, random)
    if random.random() < GZIPPED:
        result = gzip.compress(result, 1)
        if random.random() < 0.5:
            result = raw(result, random)
    return result


def raw(content: bytes, random: Random) -> bytes:
    """Bytes flipped, overwritten, removed, repeated, or the end cut off."""
    data = bytearray(content)
    for _ in range(random.choice(COUNTS)):
        if not data:
            break
        position = random.randrange(len(data))
        length = min(random.choice((1, 1, 2, 4, 8, 64, 512)), len(data) - position)
        action = random.randrange(6)
        if action == 0:
            data[position] ^= 1 << random.randrange(8)
        elif action == 1:
            data[position : position + length] = random.randbytes(length)
        elif action == 2:
            data[position : position + length] = random.choice((b"\x00", b"\xff")) * length
        elif action == 3:
            del data[position : position + length]
        elif action == 4:
            data[position:position] = data[position : position + length] * random.randint(1, MOST_COPIES)
        elif random.random() < 0.3:
            del data[position:]
    return bytes(data)


# Trees: JSON and pickles.


def json_text(content: bytes, random: Random) -> bytes:
    """A JSON document with some of its values changed, at any depth."""
    document = _changed(json.loads(content), random)
    text = json.dumps(document)
    if random.random() < 0.1:
        text = re.sub(r"\b\d+\b", lambda number: _big(number[0], random), text)
    return text.encode()


def _big(number: str, random: Random) -> str:
    return number if random.random() < 0.99 else "9" * random.choice((19, 25, 400))


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def pickled(content: bytes, random: Random) -> bytes:
    """A pickle of plain values with some of them changed; its opcodes where it holds anything else."""
    value = _changed(_Plain(io.BytesIO(content)).load(), random)
    return pickle.dumps(value, random.choice((2, 4, 5)))


def _changed(tree: Any, random: Random) -> Any:
    root = [tree]
    for _ in range(random.choice(COUNTS)):
        _change(root, random)
    return root[0]


def _change(root: list[Any], random: Random) -> None:
    """Walk down by chance and change what is reached."""
    holder: Any = root
    key: Any = 0
    for _ in range(MOST_DEPTH):
        value = holder[key]
        if not isinstance(value, dict | list) or not value or random.random() < 0.08:
            break
        holder, key = value, random.choice(list(value)) if isinstance(value, dict) else random.randrange(len(value))
    action = random.randrange(8)
    if action == 0 and holder is not root:
        del holder[key]
    elif action == 1 and isinstance(holder, list) and holder is not root:
        holder[key:key] = [holder[key]] * random.randint(1, MOST_COPIES)
    elif action == 2 and isinstance(holder, dict):
        other = random.choice(list(holder))
        holder[key], holder[other] = holder[other], holder[key]
    elif action == 3 and isinstance(holder, dict):
        holder[random.choice(TEXTS)] = holder.pop(key)
    elif action == 4 and isinstance(holder[key], int | float):
        holder[key] = random.choice((-holder[key], holder[key] * 1_000, holder[key] + 1, str(holder[key])))
    elif action == 5 and isinstance(holder[key], list):
        random.shuffle(holder[key])
    else:
        holder[key] = random.choice(random.choice((NUMBERS, TEXTS, OTHERS)))


# Protocol buffers, without their schema: what parses as a message is taken for one.


def protobuf(content: bytes, random: Random) -> bytes:
    """A message with some of its fields changed, at any depth."""
    if _fields(content) is None:
        raise ValueError("no message")
    for _ in range(random.choice(COUNTS)):
        content = _changed_message(content, random, 0)
    return content


Field = tuple[int, int, Any]
"""Number, wire type, value: an integer, or bytes."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}


def _fields(content: bytes) -> list[Field] | None:
    """The fields of a message; ``None`` if it is invalid."""
    fields: list[Field] = []
    position = 0
    while position < len(content):
        tag, position = _varint(content, position)
        number, wire = tag >> 3, tag & 7
        if position < 0 or not 0 < number < 1 << 20:
            return None
        value: Any
        if wire == VARINT:
            value, position = _varint(content, position)
        elif wire in _WIDTHS:
            value, position = content[position : position + _WIDTHS[wire]], position + _WIDTHS[wire]
        elif wire == BYTES:
            length, position = _varint(content, position)
            value, position = content[position : position + length], position + length
        else:
            return None
        if position < 0 or position > len(content):
            return None
        fields.append((number, wire, value))
    return fields


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """The value and where it ends, ``-1`` if it does not."""
    value = 0
    for count in range(10):
        if not 0 <= position + count < len(content):
            return 0, -1
        byte = content[position + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, position + count + 1
    return 0, -1


def _encoded(fields: list[Field]) -> bytes:
    return b"".join(_encoded_field(*field) for field in fields)


def _encoded_field(number: int, wire: int, value: Any) -> bytes:
    tag = _encoded_varint(number << 3 | wire)
    if wire == VARINT:
        return tag + _encoded_varint(value)
    return tag + (_encoded_varint(len(value)) if wire == BYTES else b"") + value


def _encoded_varint(value: int) -> bytes:
    value &= 2**64 - 1
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _changed_message(content: bytes, random: Random, depth: int) -> bytes:
    fields = _fields(content) if depth < MOST_DEPTH else None
    if not fields:
        return random.choice(TEXTS).encode("utf-8", "surrogatepass") if random.random() < 0.3 else raw(content, random)
    index = random.randrange(len(fields))
    number, wire, value = fields[index]
    action = random.randrange(10)
    if wire == BYTES and action < 6:
        fields[index] = (number, wire, _changed_message(value, random, depth + 1))
    elif action == 6:
        del fields[index]
    elif action == 7:
        fields[index:index] = [fields[index]] * random.randint(1, MOST_COPIES)
    elif action == 8:
        other = random.randrange(len(fields))
        fields[index], fields[other] = fields[other], fields[index]
    elif action == 9:
        fields[index] = (random.choice((number + 1, random.randint(1, 30))), wire, value)
    elif wire == VARINT:
        chosen = random.choice(NUMBERS)
        fields[index] = (number, wire, int(chosen) if abs(chosen) < 2**64 else random.choice((value + 1, value * 2)))
    elif wire in _WIDTHS:
        fields[index] = (number, wire, random.choice((b"\x00", b"\xff", b"\x7f")) * _WIDTHS[wire])
    else:
        fields[index] = (number, wire, b"")
    return _encoded(fields)


# Lines of text.

_WORDS = re.compile(rb"[A-Za-z_][\w.-]*|-?\d+|[^\w\s]")


def lines(content: bytes, random: Random) -> bytes:
    """A text with lines removed, repeated or moved, and numbers and words of lines changed."""
    content.decode()
    rows = content.split(b"\n")
    for _ in range(random.choice(COUNTS)):
        if not rows:
            break
        index = random.randrange(len(rows))
        action = random.randrange(10)
        if action == 0:
            del rows[index]
        elif action == 1:
            rows[index:index] = [rows[index]] * random.randint(1, MOST_COPIES)
        elif action == 2:
            other = random.randrange(len(rows))
            rows[index], rows[other] = rows[other], rows[index]
        else:
            rows[index] = _changed_line(rows, index, random)
    return b"\n".join(rows)


def _changed_line(rows: list[bytes], index: int, random: Random) -> bytes:
    """One word of a line replaced, by a number, a text, or a word of another line."""
    start = rows[index].find(b"{")
    if start >= 0 and random.random() < 0.5:
        try:
            return rows[index][:start] + json_text(rows[index][start:], random)
        except ValueError:
            pass
    words = list(_WORDS.finditer(rows[index]))
    if not words:
        return rows[index]
    word = random.choice(words)
    donors = _WORDS.findall(random.choice(rows)) or [b"0"]
    if random.random() < 0.5:  # a number for a number, a name for a name
        donors = [donor for donor in donors if donor.isalpha() == word[0].isalpha() and donor != word[0]] or donors
        return rows[index][: word.start()] + random.choice(donors) + rows[index][word.end() :]
    replacement = random.choice((
        str(random.choice(NUMBERS)).encode(),
        random.choice(TEXTS).encode("utf-8", "surrogatepass"),
        b"",
        *[random.choice(donors) for _ in range(3)],
    ))  # fmt: skip
    return rows[index][: word.start()] + replacement + rows[index][word.end() :]


# Tables of SQLite.


def sqlite(content: bytes, random: Random) -> bytes:
    """A database with cells changed, rows removed or repeated, columns and tables dropped."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(content)
        for _ in range(random.choice(COUNTS)):
            _change_table(connection, random)
        connection.commit()
        return bytes(connection.serialize())
    finally:
        connection.close()


def _change_table(connection: sqlite3.Connection, random: Random) -> None:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if not tables:
        return
    table = random.choice(tables)
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    column = random.choice(columns)
    rowids = [row for (row,) in connection.execute(f'SELECT rowid FROM "{table}" LIMIT 1000')]
    action = random.randrange(20)
    if action == 0:
        connection.execute(f'DROP TABLE "{table}"')
    elif action == 1 and len(columns) > 1:
        connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
    elif action == 2 and rowids:
        connection.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (random.choice(rowids),))
    elif action == 3:
        connection.execute(f'INSERT INTO "{table}" ("{column}") VALUES (?)', (_cell(random),))
    elif action == 4:
        connection.execute(f'UPDATE "{table}" SET "{column}" = ?', (_cell(random),))
    elif rowids:
        connection.execute(
            f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE rowid = ?', (_cell(random), random.choice(rowids))
        )


def _cell(random: Random) -> Any:
    value = random.choice((*NUMBERS, *TEXTS[:3], None, b"\x00\xff", b""))
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(value)
    return value
