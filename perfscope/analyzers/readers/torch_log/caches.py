"""What the caches of the compiler answered: hit, miss, or bypass and why."""

from __future__ import annotations

import re

import msgspec

from perfscope.analyzers.compile_log import CacheResult
from perfscope.analyzers.readers.torch_log.records import Record, decode
from perfscope.analyzers.readers.torch_log.text import clean
from perfscope.analyzers.readers.torch_log.unit import Unit

_NAME = re.compile(r"(fx_graph|aotautograd)(?:_bundled)?_cache_(hit|miss|bypass|hash)$")
_RESULTS: dict[str, CacheResult] = {"hit": "hit", "miss": "miss", "bypass": "bypass"}


class _Said(msgspec.Struct):
    cache_state: str | None = None
    cache_bypass_reason: str | None = None
    cache_bypass_exception_type: str | None = None


def is_cache(name: str) -> bool:
    """Whether an artifact of this name says what a cache answered."""
    return _NAME.match(name) is not None


def answer(unit: Unit, record: Record) -> None:
    """Note the answer; of a backward graph's under ``fx_graph_backward``."""
    named = _NAME.match(record.name)
    if named is None:
        return
    said = decode(record.payload(), _Said)
    result = _RESULTS.get(named[2]) or _RESULTS.get(said.cache_state or "")
    if result is None:  # torch before 2.6 logs the key only
        return
    cache = named[1]
    if cache == "fx_graph" and unit.direction_of(unit.section) == "backward":
        cache = "fx_graph_backward"
    unit.caches[cache] = result
    if result == "bypass" and said.cache_bypass_reason:
        unit.cache_reasons[cache] = clean(" ".join(said.cache_bypass_reason.split()), 500)
