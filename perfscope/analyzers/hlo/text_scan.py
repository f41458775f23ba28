"""Finds its way in a line of HLO text: matching brackets, pieces between commas, quoted strings.

Every function passes over its text once and keeps a depth, not a recursion: hostile nesting costs
time in proportion to its length and no stack.
"""

from __future__ import annotations

import re

_STEP = re.compile(r'"(?:[^"\\]++|\\.)*+"|["()\[\]{},]', re.DOTALL)
"""A whole quoted string (or a quote that nothing closes), a bracket, or a comma."""

_ESCAPE = re.compile(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_NAMED_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}


class OpenBracketError(ValueError):
    """A bracket or quote is open at the end of the text."""


def closing(text: str, opening: int) -> int:
    """Index of the bracket that closes the one at ``opening``; ``OpenBracketError`` if there is none."""
    depth = 0
    for step in _STEP.finditer(text, opening):
        mark = step[0]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
            if not depth:
                return step.start()
        elif mark == '"':
            break
    raise OpenBracketError("a bracket is not closed")


def open_brackets(text: str, depth: int = 0) -> int:
    """Brackets open at the end of ``text``, if ``depth`` were open before it; what follows an open quote is not."""
    for step in _STEP.finditer(text):
        if step[0] == '"':
            break
        depth += (step[0] in "([{") - (step[0] in ")]}")
    return depth


def pieces(text: str, start: int = 0, end: int | None = None) -> list[str]:
    """``text[start:end]`` between its outermost commas, stripped; none for blank text."""
    end = len(text) if end is None else end
    found = []
    depth, begin = 0, start
    for step in _STEP.finditer(text, start, end):
        mark = step[0]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
            if depth < 0:
                raise ValueError("a bracket closes that was not opened")
        elif mark == '"':
            raise OpenBracketError("a quote is not closed")
        elif mark == "," and not depth:
            found.append(text[begin : step.start()].strip())
            begin = step.end()
    if depth:
        raise OpenBracketError("a bracket is not closed")
    last = text[begin:end].strip()
    if last or found:
        found.append(last)
    return found


def unquoted(text: str) -> str:
    """The string that a quoted one means (C escapes, bytes as octal); text without quotes as it is."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    inner = text[1:-1]
    if "\\" not in inner:
        return inner
    return _ESCAPE.sub(_unescaped, inner.encode()).decode("utf-8", "replace")


def _unescaped(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    if code[:1].isdigit() and code < b"8":
        return bytes([int(code, 8) & 0xFF])
    if len(code) > 1:
        return bytes([int(code[1:], 16)])
    return _NAMED_ESCAPES.get(code, code)
