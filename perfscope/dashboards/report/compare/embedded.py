"""The document that a page carries: the whole where it is small, else cut, and still one whose parts sum."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from perfscope.model.untrusted_text import sanitize_value

if TYPE_CHECKING:
    from perfscope.dashboards.report.compare.document import Document

MOST_CHARACTERS = 120_000
"""Of the JSON in a page: with it the page of the largest recordings opens on a phone at once."""

CUTS = ((200, 4, 1_000), (60, 2, 400), (20, 1, 200), (5, 1, 80), (1, 0, 40))
"""(entries of a list, keys of a part, characters of a text), tried in turn until it fits."""

_LISTS = ("programs", "causes", "findings", "kernels", "ranks", "not_looked", "notes", "metrics", "beside", "failed")


def embedded(document: Document) -> str:
    """JSON for a ``<script>`` block: no ``<`` is in it; ``left_out`` says what was cut."""
    held: dict[str, Any] = msgspec.to_builtins(document)
    left: dict[str, int] = {}
    text = ""
    if len(msgspec.json.encode(document)) <= MOST_CHARACTERS:  # else cleaning all of it would be for nothing
        text = _text(sanitize_value(held))
    for cut in CUTS:
        if text and len(text) <= MOST_CHARACTERS:
            break
        held = _cut(held, left, *cut)  # of what is cut already: its texts are short and clean
        said = [f"{count:,} of {name}" for name, count in left.items() if count]
        said.append(f"keys of a part beyond {cut[1]}, texts beyond {cut[2]} characters")
        text = _text(held | {"left_out": said})
    return text


def _text(held: dict[str, Any]) -> str:
    text = json.dumps(held, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _cut(whole: dict[str, Any], left: dict[str, int], entries: int, keys: int, characters: int) -> dict[str, Any]:
    """Shorter; what is left out is added to ``left``."""
    held = dict(whole)
    for name in _LISTS:
        left[name] = left.get(name, 0) + max(0, len(held[name]) - entries)
        held[name] = held[name][:entries]
    for name in ("base", "head"):
        held[name] = held[name] | {"paths": held[name]["paths"][:entries]}
    held["causes"] = [one | {part: one[part][:entries] for part in ("parts", "metrics", "findings")}
                      for one in held["causes"]]  # fmt: skip
    held["programs"] = [_fewer_rows(one, entries, left) for one in held["programs"]]
    held["metrics"] = [one | {"places": one["places"][:entries]} for one in held["metrics"]]
    for name in ("step", "worst_rank"):
        if held[name] is not None:
            held[name], parts = _fewer_parts(held[name], entries, keys)
            left[f"the parts of {name}"] = left.get(f"the parts of {name}", 0) + parts
    found: dict[str, Any] = sanitize_value(held, characters)
    found["schema"] = whole["schema"]
    return found


def _fewer_parts(step: dict[str, Any], entries: int, keys: int) -> tuple[dict[str, Any], int]:
    """The step with its first parts; the others are added to those that were left out before."""
    kept, rest = step["parts"][:entries], step["parts"][entries:]
    others = step["other_parts"]
    sums = {f"{side}_ns": others[f"{side}_ns"] + sum(part[side]["ns"] for part in rest) for side in ("base", "head")}
    fewer = [part | {side: _fewer_keys(part[side], keys) for side in ("base", "head")} for part in kept]
    return step | {"parts": fewer, "other_parts": {"count": others["count"] + len(rest), **sums}}, len(rest)


def _fewer_rows(program: dict[str, Any], entries: int, left: dict[str, int]) -> dict[str, Any]:
    """The program with its first rows; the others are added to those that were left out before."""
    kept, rest = program["rows"][:entries], program["rows"][entries:]
    others = program["other_rows"]
    sums: dict[str, dict[str, Any]] = {}
    for amount in (*others["amounts"], *(one for row in rest for one in row["amounts"])):
        known = sums.setdefault(amount["name"], amount | {"base": 0, "head": 0})
        sums[amount["name"]] = known | {side: known[side] + amount[side] for side in ("base", "head")}
    left["the rows of programs"] = left.get("the rows of programs", 0) + len(rest)
    names = ("base_names", "head_names", "said")
    return program | {
        "rows": [row | {name: row[name][:entries] for name in names} for row in kept],
        "other_rows": {"count": others["count"] + len(rest), "amounts": list(sums.values())},
        "written": None if program["written"] is None else program["written"][:entries],
        "notes": program["notes"][:entries],
    }


def _fewer_keys(side: dict[str, Any], keys: int) -> dict[str, Any]:
    left = side["keys_left"] + max(0, len(side["keys"]) - keys)
    return side | {"keys": side["keys"][:keys], "keys_left": left}
