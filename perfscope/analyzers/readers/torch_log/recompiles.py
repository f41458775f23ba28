"""Recompilations: the guards that failed, one by earlier compilation, the latest first.

String values that a guard compares with are not kept: they are the program's data.
"""

from __future__ import annotations

import re

from perfscope.analyzers.readers.torch_log.limits import MAX_ITEMS
from perfscope.analyzers.readers.torch_log.records import DamagedError, Record, decode
from perfscope.analyzers.readers.torch_log.text import clean

_EARLIER = re.compile(r"^!?\d+(?:/\d+){1,2}: ")
_HINT = re.compile(r"\((?:HINT: [^()]{1,300})\)")
_STRING = r"""[bru]?(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_VALUE = re.compile(rf"((?:[=!]=|\bis(?: not)?|\bin|\bexpected|\bactual)\s*){_STRING}")
_VALUES = re.compile(rf"([\[{{(,:]\s*){_STRING}(?=\s*[,\]}}):])")
_COMPARED = re.compile(r"(?:[=!]=|\bis(?: not)?|\bin)\s*(?=[\[{(])")


def reasons(record: Record) -> tuple[str, ...]:
    """``recompile_reasons``: JSON list, or (torch since 2.11, where there is one) a plain line."""
    payload = record.payload()
    try:
        said = decode(payload, list[str])
    except DamagedError:
        if payload.lstrip().startswith(b"["):
            raise
        said = [payload.decode("utf-8", "replace")]
    found = dict.fromkeys(guard(one) for one in said[:MAX_ITEMS])
    return tuple(one for one in found if one)


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
