"""Donation as the head of HLO text spells it.

```
input_output_alias={ {0}: (1, {}, may-alias), {1}: (2, {0}, must-alias) }
buffer_donor={ (3, {}), (4, {1}) }
```
"""

from __future__ import annotations

import re

from perfscope.analyzers.hlo.module import Alias

_INDEX = r"\{([\d, ]{0,200})\}"
_PARAMETER = rf"\((\d{{1,9}}), {_INDEX}"
_ALIAS = re.compile(rf"{_INDEX}: {_PARAMETER}(?:, (may|must)-alias)?\)")
_DONOR = re.compile(rf"{_PARAMETER}\)")


def aliases_of(text: str) -> tuple[Alias, ...]:
    """The entries of ``input_output_alias``; ``ValueError`` for what is not spelled like one."""
    return tuple(
        Alias(output=_index(found[1]), parameter=int(found[2]), part=_index(found[3]), must=found[4] == "must")
        for found in _entries(_ALIAS, text)
    )


def donors_of(text: str) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """The entries of ``buffer_donor``: parameter, part of it. ``ValueError`` as in ``aliases_of``."""
    return tuple((int(found[1]), _index(found[2])) for found in _entries(_DONOR, text))


def _entries(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    inner = text.strip().removeprefix("{").removesuffix("}").strip()
    found, place = [], 0
    while place < len(inner):
        match = pattern.match(inner, place)
        if match is None:
            raise ValueError(f"donated parameters are not spelled like this: {inner[place : place + 40]!r}")
        found.append(match)
        place = match.end()
        while place < len(inner) and inner[place] in ", ":
            place += 1
    return found


def _index(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part.strip())
