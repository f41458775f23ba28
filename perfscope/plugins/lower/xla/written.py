"""The program before HLO: jaxprs and StableHLO, as JAX prints them, with the line of each operation."""

from __future__ import annotations

import re
from pathlib import Path

from perfscope.analyzers.hlo import is_library, scope_of
from perfscope.analyzers.readers import open_bytes
from perfscope.plugins.lower.program import StageOp

MOST_BYTES = 256 << 20

_EQUATION = re.compile(r"^\s+(?:(?P<names>[\w:\[\], *<>{}=.]+?) = )(?P<op>[a-z_][\w]*)(?:\[|\s|$)")
_WHERE = re.compile(r"\s+# (?P<file>[^\s:]+\.py):(?P<line>\d+)(?::\d+)?(?: \(.*\))?\s*$")
_RESULT = re.compile(r"[a-z_]+\d*:([a-z]+\d*(?:_\w+)?\[[\d,]*\])")

_OPERATION = re.compile(r"^\s+(?:(?P<names>%[\w:#, %]+?) = )?\"?(?P<op>(?:stablehlo|mhlo|chlo|func|sdy)\.[\w.]+)\"?")
_LOC = re.compile(r"^#(loc\d*) = loc\((.*)\)\s*$")
_OWN = re.compile(r"loc\((#loc\d*|\".*\".*?)\)\s*$")
_FILE = re.compile(r"^\"([^\"]+)\":(\d+):\d+")
_NAMED = re.compile(r"^\"((?:[^\"\\]|\\.)*)\"\((#loc\d*)\)$")
_CALLSITE = re.compile(r"^callsite\((#loc\d*) at (#loc\d*)\)$")
_RESULTS = re.compile(r"tensor<([^>]*)>")
_NO_WORK = frozenset({"stablehlo.return", "func.func", "func.return", "stablehlo.constant", "return"})
_MOST_STEPS = 200


def jaxpr_ops(text: str) -> tuple[StageOp, ...]:
    """The equations of a printed jaxpr; with lines if it was printed with them."""
    found = []
    for line in text.splitlines():
        match = _EQUATION.match(line)
        if match is None or "let" in line.split("#", 1)[0].split():
            continue
        where = _WHERE.search(line)
        result = _RESULT.search(match["names"] or "")
        found.append(
            StageOp(
                name=(match["names"] or "").split(":", 1)[0].strip(), op=match["op"],
                file=where["file"] if where else None, line=int(where["line"]) if where else None,
                result=result[1] if result else "", text=" ".join(line.split("  #", 1)[0].split()),
            )
        )  # fmt: skip
    return tuple(found)


def stablehlo_ops(text: str) -> tuple[StageOp, ...]:
    """The operations of printed StableHLO or MHLO; with lines if it was printed with locations."""
    lines = text.splitlines()
    table = {match[1]: match[2] for line in lines if (match := _LOC.match(line)) is not None}
    found = []
    for line in lines:
        match = _OPERATION.match(line)
        if match is None or match["op"] in _NO_WORK:
            continue
        own = _OWN.search(line)
        name, place = _resolved(own[1], table) if own else ("", None)
        result = _RESULTS.findall(line.rpartition("->")[2] or line) or _RESULTS.findall(line)
        scope = scope_of(name) if name else None
        found.append(
            StageOp(
                name=(match["names"] or "").strip(), op=match["op"].partition(".")[2], file=place[0] if place else None,
                line=place[1] if place else None, result=result[0] if result else "",
                phase=scope.phase if scope and "jit(" in name else "", scope=scope.label if scope else "",
                text=_OWN.sub("", line).strip()[:240],
            )
        )  # fmt: skip
    return tuple(found)


def _resolved(loc: str, table: dict[str, str]) -> tuple[str, tuple[str, int] | None]:
    """Name and innermost line of the user's code at a location."""
    name = ""
    queue, innermost = [loc], None
    for _ in range(_MOST_STEPS):
        if not queue:
            break
        text = queue.pop(0)
        text = table.get(text.removeprefix("#"), "") if text.startswith("#") else text
        if (file := _FILE.match(text)) is not None:
            place = file[1], int(file[2])
            innermost = innermost or place
            if not is_library(place[0]):
                return name, place
        elif (named := _NAMED.match(text)) is not None:
            name = name or named[1]
            queue.insert(0, named[2])
        elif (call := _CALLSITE.match(text)) is not None:
            queue[:0] = [call[1], call[2]]
    return name, innermost


def read_text(file: Path) -> str:
    """The text of a file, unpacked; ``DataError`` if it is unreadable or too large."""
    with open_bytes(file, MOST_BYTES) as data:
        return bytes(data).decode("utf-8", "replace")
