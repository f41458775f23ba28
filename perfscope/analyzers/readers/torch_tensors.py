"""Reads ``tensors.json.gz``: what a PyTorch program held when its recordings began (`perfscope run`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from perfscope.analyzers.readers._bytes import open_bytes
from perfscope.analyzers.trace import MISSING, TABLES, Rows, Trace
from perfscope.analyzers.trace.memory_tables import MemoryCategory
from perfscope.profiler.errors import DataError

MAX_BYTES = 256 << 20
"""Unpacked. The capture lists 20,000 storages twice, some MB: what is larger is not ours."""

CATEGORY = {
    "parameter": MemoryCategory.PARAMETER,
    "buffer": MemoryCategory.PARAMETER,  # held as long as the weights, and by the same modules
    "gradient": MemoryCategory.GRADIENT,
    "optimizer_state": MemoryCategory.OPTIMIZER_STATE,
}

Count = Annotated[int, msgspec.Meta(ge=0)]


class _Rest(msgspec.Struct, frozen=True):
    category: str
    device: str
    bytes: Count
    count: Count


class _Listing(msgspec.Struct, frozen=True):
    pass_name: str = msgspec.field(name="pass")
    step: Count
    name: list[Count]
    module: list[Count | None]
    category: list[Count]
    device: list[Count]
    address: list[Count]
    bytes: list[Count]
    freed_ns: list[Count | None]
    rest: list[_Rest]
    unreadable: Count


class _Document(msgspec.Struct, frozen=True):
    schema: Literal["perfscope.tensors/1"]
    strings: list[str]
    listings: list[_Listing]


class Listings:
    """What was held, by the pass that began then."""

    def __init__(self, document: _Document) -> None:
        """Hold it; ``ValueError`` if its parts do not fit together."""
        self._texts = document.strings
        self._by_pass = {one.pass_name: one for one in document.listings}
        for one in self._by_pass.values():
            self._check(one)

    def notes(self) -> list[str]:
        """What a reader of the report must know."""
        most = max((one.unreadable for one in self._by_pass.values()), default=0)
        return [f"{most} tensors of the program have no storage that could be listed"] if most else []

    def attach(self, trace: Trace, pass_name: str) -> None:
        """Put what was held when ``pass_name`` began into the trace of that pass, or what was held at first."""
        listing = self._by_pass.get(pass_name) or next(iter(self._by_pass.values()), None)
        if listing is None:
            return
        own = listing.pass_name == pass_name
        first = len(trace.strings)
        trace.strings.extend((*self._texts, *(f"{rest.count:,} smaller ones" for rest in listing.rest)))
        names = [*listing.name, *range(len(self._texts), len(self._texts) + len(listing.rest))]
        devices = [self._texts[code] for code in listing.device] + [rest.device for rest in listing.rest]
        categories = [self._texts[code] for code in listing.category] + [rest.category for rest in listing.rest]
        summed = len(listing.rest)
        trace.rows["tensors"] = Rows(
            TABLES["tensors"],
            {
                "name": [first + code for code in names],
                "module": [MISSING if code is None else first + code for code in listing.module] + [MISSING] * summed,
                "category": [CATEGORY.get(one, MemoryCategory.UNKNOWN) for one in categories],
                "on_device": [_type(device) != "cpu" for device in devices],
                "ordinal": [_ordinal(device) for device in devices],
                "address": np.array([*listing.address, *([0] * summed)], np.uint64),
                "bytes": np.array([*listing.bytes, *(rest.bytes for rest in listing.rest)], np.int64),
                "count": np.array([*([1] * len(listing.bytes)), *(rest.count for rest in listing.rest)], np.int64),
                # A moment of another pass is none of this one's.
                "freed_ns": [MISSING if when is None or not own else when for when in listing.freed_ns]
                + [MISSING] * summed,
            },
        )
        trace.recorded |= {"tensors"}

    def _check(self, one: _Listing) -> None:
        columns = (one.name, one.module, one.category, one.device, one.address, one.bytes, one.freed_ns)
        if len({len(column) for column in columns}) > 1:
            raise ValueError("columns of different length")
        codes = [code for column in (one.name, one.module, one.category, one.device) for code in column]
        if max((code for code in codes if code is not None), default=-1) >= len(self._texts):
            raise ValueError("a text that is not there")
        sizes = [*one.bytes, *(rest.bytes for rest in one.rest), *(when or 0 for when in one.freed_ns)]
        if sum(sizes[: len(one.bytes) + len(one.rest)]) >= 1 << 62 or max(sizes, default=0) >= 1 << 62:
            raise ValueError("more bytes than there can be")
        if max(one.address, default=0) >= 1 << 64:
            raise ValueError("an address that cannot be")


def read_tensors(path: Path) -> Listings:
    """The listings in a file; ``DataError`` (one line) if it is missing, cut, corrupt or of another format."""
    try:
        with open_bytes(path, MAX_BYTES) as content:
            return Listings(msgspec.json.decode(content, type=_Document))
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not a list of tensors of perfscope: {error}") from error


def _type(device: str) -> str:
    return device.partition(":")[0]


def _ordinal(device: str) -> int:
    number = device.partition(":")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 6 else MISSING
