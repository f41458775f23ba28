"""Recompilations: the guards that failed, one by earlier compilation, the latest first.

String values that a guard compares with are not kept: they are the program's data.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfscope.analyzers.compile_log import Place
from perfscope.analyzers.readers.torch_log.limits import MAX_ITEMS
from perfscope.analyzers.readers.torch_log.records import DamagedError, Record, decode
from perfscope.analyzers.readers.torch_log.text import clean, places_of

_EARLIER = re.compile(r"^!?\d+(?:/\d+){1,2}: ")
_HINT = re.compile(r"\((?:HINT: [^()]{1,300})\)")
_STRING = r"""[bru]?(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_VALUE = re.compile(rf"((?:[=!]=|\bis(?: not)?|\bin|\bexpected|\bactual)\s*){_STRING}")
_VALUES = re.compile(rf"([\[{{(,:]\s*){_STRING}(?=\s*[,\]}}):])")
_MADE_AT = re.compile(r"  # ([^#\n]{1,4096}?):(\d{1,9}) in ([\w<>.]{1,512})(?: \([^#\n]*\))?\s*$")
_COMPARED = re.compile(r"(?:[=!]=|\bis(?: not)?|\bin)\s*(?=[\[{(])")


def failed(record: Record) -> tuple[tuple[str, ...], Place | None]:
    """``recompile_reasons``: the guards that failed, and the line that made the first one necessary, where it is said.

    The payload is a JSON list, or (torch since 2.11, where there is one guard) plain text.
    """
    payload = record.payload()
    try:
        said = decode(payload, list[str])
    except DamagedError:
        if payload.lstrip().startswith(b"["):
            raise
        said = [payload.decode("utf-8", "replace")]
    said = said[:MAX_ITEMS]
    found = dict.fromkeys(guard(one) for one in said)
    return tuple(one for one in found if one), _made_at(said)


def _made_at(said: Sequence[str]) -> Place | None:
    """The line whose tracing made the first guard: ``# code  # folder/file.py:6 in f`` behind it, or a stack below it.

    Of a file torch writes the end in the first form, perhaps from within a folder's name; a stack, perhaps below
    another guard of the same line, has the whole path.
    """
    stacks = [places_of(text[:20_000].partition("\nUser stack trace:")[2]) for text in said]
    if not stacks:
        return None
    if stacks[0]:
        return stacks[0][-1]
    first = said[0][:20_000].split("\n", 1)[0]
    made = _MADE_AT.search(first)
    if made is None:
        return None
    file, line = clean(made[1], 4096), int(made[2])
    same = (stack[-1] for stack in stacks if stack and stack[-1].line == line and stack[-1].file.endswith(file))
    code = clean(first[: made.start()].partition("  # ")[2].strip()) or None
    return next(same, Place(file=file, line=line, function=made[3], code=code))


def guard(text: str) -> str:
    """The guard alone: no compile id before it, no source line after it, no string values in it."""
    text = text[:20_000]
    head = text.split("\nUser stack trace:", 1)[0]
    hint = _HINT.search(head)
    said = _EARLIER.sub("", head.split("  # ", 1)[0].split("\n", 1)[0]).strip()
    said = _VALUE.sub(r"\1'...'", said)
    compared = _COMPARED.search(said)
    if compared is not None:  # a list or a set of strings
        said = said[: compared.end()] + _VALUES.sub(r"\1'...'", said[compared.end() :])
    return clean(f"{said} {hint[0]}" if hint and hint[0] not in said else said, 500)
