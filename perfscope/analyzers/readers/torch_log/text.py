"""Text of a log as it may be shown: bounded, without what a terminal would obey; stacks as places."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from perfscope.analyzers.readers.torch_log.records import MAX_STACK, MAX_STRINGS, MAX_TEXT
from perfscope.model.compile_log import CodeLine

_UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CONSTANT = re.compile(r"""(Variable\((?:str|bytes): )b?(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)""")
"""Dynamo's name of a string: ``ConstantVariable(str: 'value')``."""
_FRAME = re.compile(r'\s*File "([^"\n]{1,4096})", line (\d{1,9})(?:, in ([^\n]{1,512}))?$')


def clean(text: str, most: int = MAX_TEXT) -> str:
    """``text`` without control characters and the program's own strings, at most ``most`` characters."""
    text = text[: most + 256]
    if "Variable(" in text:
        text = _CONSTANT.sub(r"\1'...'", text)
    return _UNSEEN.sub("", text)[:most]


def headline(text: str) -> str:
    """The first line that says something; the next too if it ends in a colon."""
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
    """The table of strings that records intern: ``{"str": ["/x.py", 3]}``."""

    def __init__(self) -> None:
        self._held: dict[int, str] = {}

    def add(self, text: str, number: int) -> None:
        """Remember ``text``; a number is used again when torch starts again."""
        if len(self._held) < MAX_STRINGS:
            self._held[number] = clean(text, 4096)

    def places(self, frames: Iterable[Frame]) -> tuple[CodeLine, ...]:
        """Frames as places, the innermost last; those whose file is not known are left out."""
        found = []
        for frame in list(frames)[-MAX_STACK:]:
            file = self._held.get(frame.filename) if isinstance(frame.filename, int) else frame.filename
            if file is None:
                continue
            code = None if frame.loc is None else clean(frame.loc)
            name = None if frame.name is None else clean(frame.name)
            found.append(CodeLine(file=file, line=frame.line, function=name, code=code or None))
        return tuple(found)


def places_of(text: str) -> tuple[CodeLine, ...]:
    """The frames of a printed traceback, the innermost last."""
    lines = text.split("\n")
    found = []
    for number, line in enumerate(lines):
        frame = _FRAME.match(line) if "File " in line else None
        if frame is None:
            continue
        following = lines[number + 1].strip() if number + 1 < len(lines) else ""
        code = "" if _FRAME.match(following) or set(following) <= set("^~ ") else following
        name = frame[3].strip() if frame[3] else None
        found.append(
            CodeLine(
                file=clean(frame[1], 4096),
                line=int(frame[2]),
                function=clean(name) if name else None,
                code=clean(code) or None,
            )
        )
    return tuple(found[-MAX_STACK:])
