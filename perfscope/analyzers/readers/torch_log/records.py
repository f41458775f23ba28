r"""Records of a log: a line ``V0401 12:00:00.000000 77 torch/x.py:3] {...}``, then its payload, each line after a tab.

``has_payload`` has the payload's md5. Everything else (blank lines, corrupt lines, a truncated end) is counted. One
record is in memory at a time; a payload that is not needed is hashed in pieces and never held.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from perfscope.model.compile_log import CodeLine

# Limits of the memory for a log of any content. Real logs are far below all of them.
MAX_HEAD_BYTES = 16 << 20
"""Maximum bytes of a record's own line: metrics with all configurations of torch have 60 kB."""
MAX_PAYLOAD_BYTES = 64 << 20
"""Maximum bytes of a parsed payload: the output code of a graph of 20,000 nodes has 20 MB."""
_PIECE = 1 << 20
MAX_STRINGS = 100_000
"""Maximum number of file names that records refer to by number."""
MAX_COMPILES = 100_000
"""Maximum number of compilations, breaks, recompiles and refusals each; torch gives up after 8 compilations of a frame.
"""
MAX_SPANS = 1_000_000
"""Maximum number of timed phases: about 60 per compilation."""
MAX_NODES = 2_000_000
"""Maximum number of nodes of all graphs together."""
MAX_KERNELS = 500_000
"""Maximum number of kernels of all graphs together."""
MAX_TEXT = 2_000
"""Maximum characters of a reason, a hint, a line of code."""
MAX_ITEMS = 64
"""Maximum number of hints, reasons or restarts of one record."""
MAX_STACK = 200
"""Maximum number of frames of a stack, the innermost ones."""
MAX_KINDS = 50
"""Maximum number of unknown kinds of records that are named."""


ENVELOPE = frozenset(
    {
        "frame_id",
        "frame_compile_id",
        "attempt",
        "compiled_autograd_id",
        "rank",
        "has_payload",
        "stack",
        "process",
        "thread",
        "timestamp",
        "pathname",
        "lineno",
    }
)
"""Keys of any record; the remaining key is its kind (``torch._logging._internal.trace_structured``)."""

_PREFIX = re.compile(
    rb"(?:\[rank(\d{1,9})\]:)?[A-Z]\d{4} \d\d:\d\d:\d\d\.\d{1,9} (\d{1,20}) [^\]\n]{0,4096}?\]"
    rb"(?: \[[^\]\n]{0,256}\]){0,2} (?=\{)"
)
"""``torch._logging._internal.TorchLogsFormatter.format``: level, date without a year, local time, process, place."""
_NEXT = re.compile(rb"\n(?!\t)")
_BLANK = 8
"""Maximum bytes of a blank line; every record is longer."""

Kind = TypeVar("Kind")

_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])

_KIND = re.compile(rb'\{"[a-z_]{2,40}": ?[\[{]')

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_CONSTANT = re.compile(r"""(Variable\((?:str|bytes): )b?(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)""")
"""Dynamo's name of a string: ``ConstantVariable(str: 'value')``."""

_FRAME = re.compile(r'\s*File "([^"\n]{1,4096})", line (\d{1,9})(?:, in ([^\n]{1,512}))?$')


class Envelope(msgspec.Struct):
    """Common keys of all records."""

    frame_id: int | None = None
    frame_compile_id: int | None = None
    compiled_autograd_id: int | None = None
    attempt: int | None = None
    rank: int | None = None
    has_payload: str | None = None


class _Name(msgspec.Struct):
    name: str = ""


class CorruptRecordError(Exception):
    """A record or its content is invalid."""


class Record(Struct):
    """One record, valid until the next one is read."""

    kind: str
    name: str
    """Name of an artifact; ``''`` for other kinds."""
    body: msgspec.Raw
    """The JSON of its kind."""
    envelope: Envelope
    process: int
    _data: bytes | mmap.mmap
    _span: tuple[int, int]
    _crlf: bool
    _folders: re.Pattern[bytes] | None = None

    @property
    def compile_id(self) -> str | None:
        """``'0/1'``, or ``'!2'`` / ``'!2/0/1'`` in compiled autograd (``torch._guards.CompileId``)."""
        envelope = self.envelope
        frame = None
        if envelope.frame_id is not None and envelope.frame_compile_id is not None:
            frame = f"{envelope.frame_id}/{envelope.frame_compile_id}"
        if envelope.compiled_autograd_id is not None:
            return f"!{envelope.compiled_autograd_id}" + (f"/{frame}" if frame else "")
        return frame

    @property
    def empty(self) -> bool:
        """Whether it has no payload."""
        start, end = self._span
        return start == end

    def payload(self) -> bytes:
        """Return the payload without its tabs and the program's folders; ``CorruptRecordError`` if it is too long."""
        return _without(self._payload(), self._folders)

    def _payload(self) -> bytes:
        start, end = self._span
        if end - start > MAX_PAYLOAD_BYTES:
            raise CorruptRecordError("payload too long")
        raw = self._data[start:end]
        if self._crlf:
            raw = raw.replace(b"\r\n", b"\n").removesuffix(b"\r")
        return raw[1:].replace(b"\n\t", b"\n")

    def check(self) -> None:
        """Raise ``CorruptRecordError`` unless the payload has the hash in the record, if there is one."""
        expected = self.envelope.has_payload
        if expected is None:
            return
        start, end = self._span
        if end - start <= _PIECE or (self._crlf and end - start <= MAX_PAYLOAD_BYTES):
            digest = hashlib.md5(self._payload(), usedforsecurity=False)
        else:
            digest = hashlib.md5(usedforsecurity=False)
            index = start + 1
            while index < end:
                stop = min(index + _PIECE, end)
                if stop < end and self._data[stop - 1 : stop] == b"\n":
                    stop += 1  # The tab belongs to its line end.
                digest.update(self._data[index:stop].replace(b"\n\t", b"\n"))
                index = stop
        if digest.hexdigest() != expected:
            raise CorruptRecordError("payload has another hash than recorded")


class Reader:
    """Reader of records; ``corrupt`` counts invalid text and corrupt records.

    Files below ``folders`` (absolute paths) are named from there, as the program's other recordings name them.
    """

    def __init__(self, data: bytes | mmap.mmap, folders: Sequence[str] = ()) -> None:
        self._data = data
        self._folders = _below(folders)
        self.corrupt = 0
        self.records = 0

    def __iter__(self) -> Iterator[Record]:
        """Yield the records whose line and payload are intact, in order."""
        data, size, index = self._data, len(self._data), 0
        while index < size:
            match = _NEXT.search(data, index)
            end = match.start() if match else size
            head_end = data.find(b"\n", index, end)
            head_end = end if head_end < 0 else head_end
            if head_end - index > _BLANK or data[index:head_end].strip():
                try:
                    yield self._record(index, head_end, end)
                except CorruptRecordError:
                    self.corrupt += 1
            index = end + 1

    def _record(self, index: int, head_end: int, end: int) -> Record:
        if head_end - index > MAX_HEAD_BYTES:
            raise CorruptRecordError("line too long")
        line = self._data[index:head_end]
        crlf = line.endswith(b"\r")
        prefix = _PREFIX.match(line)
        if prefix is None:
            raise CorruptRecordError("no record")
        head = line[prefix.end() :]
        keys, envelope = _decoded(head)
        kind = next((key for key in keys if key not in ENVELOPE), None)
        if kind is None:
            raise CorruptRecordError("no kind")
        if envelope.rank is None and prefix[1]:
            envelope.rank = int(prefix[1])
        name = decode(keys[kind], _Name).name if kind == "artifact" else ""
        record = Record(
            kind,
            name,
            keys[kind] if self._folders is None else msgspec.Raw(_without(bytes(keys[kind]), self._folders)),
            envelope,
            int(prefix[2]),
            self._data,
            (min(head_end + 1, end), end),
            crlf,
            self._folders,
        )
        record.check()
        self.records += 1
        return record


_ENVELOPE = msgspec.json.Decoder(Envelope)


def _below(folders: Sequence[str]) -> re.Pattern[bytes] | None:
    """Return the pattern of the beginnings of paths in ``folders``, inductor's own files left out."""
    longest_first = sorted({folder.rstrip("/") for folder in folders if folder.startswith("/")}, key=len, reverse=True)
    names = [re.escape(folder.encode("utf-8", "replace")) for folder in longest_first if folder]  # none for the root
    return re.compile(rb"(?<![\w./-])(?:" + b"|".join(names) + rb")/(?!torchinductor_)") if names else None


def _without(text: bytes, folders: re.Pattern[bytes] | None) -> bytes:
    return text if folders is None else folders.sub(b"", text)


def _decoded(head: bytes) -> tuple[dict[str, msgspec.Raw], Envelope]:
    try:
        return _KEYS.decode(head), _ENVELOPE.decode(head)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        mended = _mended(head)
        try:
            return _KEYS.decode(mended), _ENVELOPE.decode(mended)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise CorruptRecordError(str(error)) from error


def _mended(text: bytes) -> bytes:
    """Convert Python's JSON (NaN, lone surrogates), as torch writes it, to standard JSON.

    ``CorruptRecordError`` if invalid.
    """
    try:
        read = json.loads(text, parse_constant=lambda _: None)
        return json.dumps(read, ensure_ascii=False).encode("utf-8", "replace")
    except (ValueError, RecursionError) as error:
        raise CorruptRecordError(str(error)) from error


def decode(text: bytes | msgspec.Raw, kind: type[Kind]) -> Kind:
    """Decode JSON as ``kind``; ``CorruptRecordError`` if it is invalid."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass
    try:
        return msgspec.json.decode(_mended(bytes(text)), type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptRecordError(str(error)) from error


def sniff(head: bytes) -> bool:
    """Return whether one of the first lines is a record of the log."""
    for line in head.split(b"\n", 50)[:50]:
        prefix = _PREFIX.match(line)
        if prefix is not None and _KIND.match(line, prefix.end()):
            return True
    return False


# Text of a log for display: bounded, without control characters of a terminal; stacks as places.


def clean(text: str, most: int = MAX_TEXT) -> str:
    """Return ``text`` without control characters and the program's own strings, at most ``most`` characters."""
    text = text[: most + 256]
    if "Variable(" in text:
        text = _CONSTANT.sub(r"\1'...'", text)
    return _UNSEEN.sub("", text)[:most]


def headline(text: str) -> str:
    """Return the first line with content; also the next one if it ends in a colon."""
    lines = [line.strip() for line in text[: 4 * MAX_TEXT].split("\n") if line.strip()]
    if not lines:
        return ""
    first = lines[0]
    if first.endswith(":") and len(lines) > 1:
        first = f"{first} {lines[1]}"
    return clean(first.strip("'\""))


class Frame(msgspec.Struct):
    """A frame of a stack in a record; the file is a number of the string table."""

    line: int = 0
    name: str | None = None
    filename: int | str | None = None
    loc: str | None = None


class Strings:
    """Table of strings that records intern: ``{"str": ["/x.py", 3]}``."""

    def __init__(self) -> None:
        self._held: dict[int, str] = {}

    def add(self, text: str, number: int) -> None:
        """Add ``text``; torch reuses numbers when it starts again."""
        if len(self._held) < MAX_STRINGS:
            self._held[number] = clean(text, 4096)

    def places(self, frames: Iterable[Frame]) -> tuple[CodeLine, ...]:
        """Return frames as places, the innermost last, without frames of an unknown file."""
        result = []
        for frame in list(frames)[-MAX_STACK:]:
            file = self._held.get(frame.filename) if isinstance(frame.filename, int) else frame.filename
            if file is None:
                continue
            code = None if frame.loc is None else clean(frame.loc)
            name = None if frame.name is None else clean(frame.name)
            result.append(CodeLine(file=file, line=frame.line, function=name, code=code or None))
        return tuple(result)


def places_of(text: str) -> tuple[CodeLine, ...]:
    """Return the frames of a printed traceback, the innermost last."""
    lines = text.split("\n")
    result = []
    for number, line in enumerate(lines):
        frame = _FRAME.match(line) if "File " in line else None
        if frame is None:
            continue
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        code = "" if _FRAME.match(following) or set(following) <= set("^~ ") else following
        name = frame[3].strip() if frame[3] else None
        result.append(
            CodeLine(
                file=clean(frame[1], 4096),
                line=int(frame[2]),
                function=clean(name) if name else None,
                code=clean(code) or None,
            )
        )
    return tuple(result[-MAX_STACK:])
