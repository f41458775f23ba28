"""Mends what profilers are known to write wrongly; every repair is counted by kind.

- torch 2.13 does not escape ``"`` in names (record_function text, dynamo file names).
- Kineto wrote ``nan`` and ``inf`` for bandwidth and occupancy.
- Control characters stand unescaped in some kernel names.
"""

from __future__ import annotations

import re
from collections import Counter

QUOTES = "unescaped quotes in a name"
NUMBERS = "nan or inf where JSON has none"
CONTROLS = "control characters in a string"

_LINE = re.compile(
    rb'^(\s*"(?:name|cat|Call stack|Input type|kernel|Trace name)"\s*:\s*")(.*)("\s*,?\s*)$', re.MULTILINE
)
_INLINE = re.compile(
    rb'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|id|args|s|bp|sf|cname)"\s*:|\}))', re.DOTALL
)
_NUMBER = re.compile(rb"(:\s*)-?(?:nan|NaN|inf|Infinity)(\s*[,}\]])")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def mend(text: bytes) -> tuple[bytes, Counter[str]]:
    """``text`` with the known faults mended, and how many of each kind were."""
    repairs: Counter[str] = Counter()
    text, controls = _CONTROL.subn(b" ", text)
    text, numbers = _NUMBER.subn(rb"\1null\2", text)
    repairs[CONTROLS], repairs[NUMBERS] = controls, numbers
    pretty = text.count(b"\n") > 3 * text.count(b'"name"')  # one key a line, not one event a line

    def escape(match: re.Match[bytes]) -> bytes:
        before, inner, after = match.groups()
        mended = _escaped(inner)
        repairs[QUOTES] += mended != inner
        return before + mended + after

    text = (_LINE if pretty else _INLINE).sub(escape, text)
    return text, +repairs


def _escaped(inner: bytes) -> bytes:
    """Escape quotes that are not escaped yet, and a backslash that would escape the closing quote."""
    if b'"' not in inner and not inner.endswith(b"\\"):
        return inner
    parts = re.split(rb"(\\.)", inner, flags=re.DOTALL)  # escapes stand at odd places and stay
    mended = b"".join(part if index % 2 else part.replace(b'"', b'\\"') for index, part in enumerate(parts))
    trailing = len(mended) - len(mended.rstrip(b"\\"))
    return mended + b"\\" if trailing % 2 else mended
