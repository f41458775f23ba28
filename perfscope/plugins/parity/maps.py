"""Files that say which weight of A is which weight of B: ``perfscope.weights-map/1``, written and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from perfscope.model.documents.bounded_json import MANY, Value, read_document
from perfscope.model.errors import UsageError
from perfscope.plugins.parity.document import Mapping

MAP_SCHEMA = "perfscope.weights-map/1"
MOST_BYTES = 64 << 20


class WeightsMap(Value, frozen=True, kw_only=True):
    """Weights of A and where they are in B."""

    schema: str
    weights: Annotated[tuple[Mapping, ...], msgspec.Meta(max_length=MANY)]


class Chosen(NamedTuple):
    """Counterparts that the user chose: ``A_NAME=B_NAME`` each, and the layouts of some of them."""

    pairs: tuple[str, ...]
    layouts: dict[str, str]


def dump_map(mappings: tuple[Mapping, ...]) -> bytes:
    """The file of a mapping, as JSON."""
    document = WeightsMap(schema=MAP_SCHEMA, weights=mappings)
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def chosen(options: tuple[str, ...]) -> Chosen:
    """Values of ``--map``: ``A_NAME=B_NAME``, or a file that `dump_map` wrote, of which later values replace entries.

    ``DataError`` with one line for a file that is not such a file, ``UsageError`` for a value that is neither.
    """
    pairs: dict[str, str] = {}
    layouts: dict[str, str] = {}
    for option in options:
        left, equals, right = option.partition("=")
        file = Path(option)
        if file.is_file() or (not equals and file.suffix == ".json"):
            document = read_document(file, WeightsMap, MAP_SCHEMA, what="a map of weights", most_bytes=MOST_BYTES)
            for mapping in document.weights:
                pairs[mapping.b] = mapping.a
                layouts[f"{mapping.a}={mapping.b}"] = mapping.layout
        elif equals:
            pairs[right] = left
        else:
            raise UsageError(f"--map {option}: give A_NAME=B_NAME, or a file of --write-map")
    return Chosen(tuple(f"{a}={b}" for b, a in pairs.items()), layouts)
