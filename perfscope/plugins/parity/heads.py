"""Fused projections whose query, key and value alternate per head: GPT-NeoX, BLOOM, Falcon and Megatron.

``heads`` of a weight is ``"Q/G"``: Q query heads in G groups, and the rows of each group are those of its Q/G query
heads, of its key head and of its value head. ``"none"``: query, key and value are one after the other. Empty: not
known, so that a fused weight of the other side is taken to have the same order, and separate ones to follow another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.parity.document import Weight
from perfscope.plugins.parity.names import parse_name

WORD = "qkv"
NONE = "none"
IN_ORDER = ("", NONE)
"""Heads of a weight whose parts are one after the other, or are taken to be."""
_TEXT = re.compile(r"(\d{1,6})(?:/(\d{1,6}))?")
_OF, _AS = re.compile(r"\bof (\d+/\d+)[\] ]"), re.compile(r"\bas (\d+/\d+)\]")
_MOST_CONFIG = 1 << 20


def ranges(weight: str, rows: int, heads: str) -> list[dict[str, tuple[int, int]]]:
    """Ranges of rows of query, key and value in each group. ``DataError`` if the rows do not divide so."""
    queries, groups = map(int, heads.split("/"))
    width, rest = divmod(rows, queries + 2 * groups)
    if rest or not width:
        raise DataError(f"{weight}: its {rows} outputs do not divide into {queries} query heads and {groups} key and "
                        "value heads")  # fmt: skip
    sizes = {"q": queries // groups * width, "k": width, "v": width}
    found, begin = [], 0
    for _ in range(groups):
        group = {}
        for word, size in sizes.items():
            group[word] = (begin, begin + size)
            begin += size
        found.append(group)
    return found


def checked(text: str) -> str:
    """``Q/G`` of an option, whose G may be missing, or ``none``. ``UsageError`` for another text."""
    if text == NONE:
        return text
    found = _TEXT.fullmatch(text)
    queries, groups = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not queries or not groups or queries % groups:
        raise UsageError(f"heads {text}: give QUERY_HEADS, QUERY_HEADS/KEY_HEADS, which divides them, or none")
    return f"{queries}/{groups}"


def with_heads(weights: Sequence[Weight], heads: str | None, side: str) -> list[Weight]:
    """The weights, of which fused ones alternate per head. ``UsageError`` if none is fused."""
    if heads is None:
        return list(weights)
    text = checked(heads)
    made = [replace(each, heads=text) if is_fused(each) else each for each in weights]
    if made == list(weights) and not any(map(is_fused, weights)):
        raise UsageError(f"--heads-{side} {heads}: no weight of that model is a fused query, key and value")
    return made


def from_options(weights: Sequence[Weight], options: Sequence[str], *, plain: bool) -> list[Weight]:
    """Weights with the heads that names in a map file have: ``NAME[q of 8/2]``, ``Q + K + V [as 8/2]``.

    ``UsageError`` for heads that groups do not divide.
    """
    found = {match[1] for option in options if (match := (_OF if plain else _AS).search(option))}
    if not plain and not found and any(" [of " in option for option in options):
        found = {NONE}
    if len(found) != 1:
        return list(weights)
    text = checked(found.pop())
    return [replace(each, heads=each.heads or text) if is_fused(each) else each for each in weights]


def of_config(config: Mapping[str, Any]) -> str:
    """Heads of a configuration of transformers; empty for models whose projections do not alternate, or odd numbers."""
    kind, heads = config.get("model_type"), config.get("num_attention_heads") or config.get("n_head")
    if kind not in ("gpt_neox", "bloom", "falcon"):
        return ""
    groups = heads
    if kind == "falcon" and config.get("new_decoder_architecture"):
        groups = config.get("num_kv_heads") or heads
    elif kind == "falcon" and config.get("multi_query"):
        groups = 1
    try:
        return checked(f"{heads}/{groups}")
    except UsageError:
        return ""


def of_folder(folder: Path) -> str:
    """Heads of the configuration next to a checkpoint; empty if it is missing or not read."""
    try:
        with (folder / "config.json").open("rb") as stream:
            return of_config(msgspec.json.decode(stream.read(_MOST_CONFIG), type=dict[str, Any]))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def is_fused(weight: Weight) -> bool:
    """Whether its name is that of a fused query, key and value."""
    name = parse_name(weight.name)
    return bool(name.words) and name.words[-1] == WORD and weight.kind != "buffer"
