"""Documents of comparisons for tests: one of launches in turns with everything in it, one whose texts are hostile."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

from perfscope.analyzers.compare.runs.comparison import compare
from perfscope.dashboards.report.compare import json
from perfscope.model.documents.comparison import Document, of
from tests.compare.programs import fused_program, split_program
from tests.compare.runs import gpu_run
from tests.hlo_build import hlo_trace

_WORDS = ("schema", "headline", "verdict", "unit", "better", "known", "per", "arm", "change", "severity", "basis")
_KEPT = frozenset((*_WORDS, "time", "gates"))
"""Keys whose values are words of ours: a reader refuses others, or acts on them."""


def single_captures(**changed: Any) -> dict[str, Any]:
    """Single captures: the head reads a value in each step. ``changed``: of the head, for ``gpu_run``."""
    return json.document(compare([gpu_run()], [gpu_run(**(changed or {"item": True}))]))


def unchanged_captures() -> dict[str, Any]:
    """Single captures of one program."""
    return json.document(compare([gpu_run()], [gpu_run()]))


def programs() -> dict[str, Any]:
    """Compiled programs whose head has lost a fusion in each of three layers, after a changed line."""
    base, head = fused_program(layers=3), split_program(layers=3)
    held = json.document(compare([hlo_trace(base)], [hlo_trace(head)]), gates=["programs"])
    (program,) = held["programs"]
    program["rows"][0]["source"] = "model.py:9"
    program["written"] = [{"place": "model.py:9", "change": "new", "what": "optimization_barrier", "count": 3}]
    program["base_modelled"], program["head_modelled"] = (
        {"low": 7_000, "high": 9_000},
        {"low": 12_000, "high": 15_000},
    )
    program["notes"] = ["what a reader must know"]
    return held


def interleaved_launches() -> dict[str, Any]:
    """Launches in turns, a copy of one's own."""
    return copy.deepcopy(_interleaved_launches())


@lru_cache
def _interleaved_launches() -> dict[str, Any]:
    """Launches in turns: a step time with its interval, kernels, launches, and what profiled launches say."""
    held = single_captures()
    step_time = {
        "name": "step time", "unit": "ns", "better": "lower", "verdict": "regression", "known": "paired launches",
        "base": 41_200_000.0, "head": 42_436_000.0, "effect": 0.03, "low": 0.02, "high": 0.04, "level": 0.972,
        "p": 0.0004, "p_sign_flip": 0.002, "robust": 0.031, "pairs": 10, "estimator": "median", "least": 0.02,
        "needed_pairs": None, "confirmed": True, "gates": True, "places": [],
        "remarks": ["confirmed by a second batch: +2.9% in 10 pairs, then +3.1% in 6"],
    }  # fmt: skip
    held["metrics"] = [step_time, *(one for one in held["metrics"] if one["known"] == "exact")]
    held["beside"] = [
        {**step_time, "name": "step time, p90", "verdict": "inconclusive", "gates": False, "low": -0.011, "high": 0.061,
         "effect": 0.024, "remarks": [], "needed_pairs": 24},
    ]  # fmt: skip
    held["summary"] = "regression: step time +3.0%"
    held["kernels"] = [
        {"name": "flash_fwd_kernel<cutlass::bf16>", "kind": "changed", "base_ns": 95_000, "head_ns": 106_000,
         "change_ns": 11_000, "effect": 0.118, "p": 0.0001, "q": 0.002, "verdict": "regression"},
        {"name": "gemm", "kind": "changed", "base_ns": 95_000, "head_ns": 95_100, "change_ns": 100, "effect": 0.001,
         "p": 0.6, "q": 0.7, "verdict": "no change"},
        {"name": "memcpy_dtoh", "kind": "new", "base_ns": 0, "head_ns": 5_100_000, "change_ns": 5_100_000,
         "effect": None, "p": None, "q": None, "verdict": "regression"},
    ]  # fmt: skip
    launches = [
        {"arm": arm, "phase": phase, "pair": pair, "ns": ns + 100_000 * ((7 * pair) % 5), "seconds": 8.5}
        for phase, pairs in (("measured", 10), ("confirming", 6))
        for pair in range(pairs)
        for arm, ns in (("base", 41_000_000), ("head", 42_230_000))
    ]
    launches[5]["ns"] = None
    held["method"] = {
        "kind": "launches in turns", "base_ref": "main", "base_commit": "1a2b3c4d5e6f7a8b9c0d" + "0" * 20,
        "head_ref": "HEAD", "head_commit": "5d6e7f8a9b0c1d2e3f4a" + "1" * 20, "command": ["train.py", "--lr", "3e-4"],
        "pairs": 10, "confirming_pairs": 6, "profiled": 3, "estimator": "median of the steady steps of a launch",
        "least": 0.02, "seed": 3471692537, "level": 0.972, "launches": launches, "remarks": ["the base held still"],
        "environment": {"gpu": "Test GPU", "torch": "2.13.0", "cuda": "12.8", "driver": "580.1"},
    }  # fmt: skip
    held["programs"] = programs()["programs"]
    held["failed"] = ["step time: regression"]
    held["gates"] = ["regression"]
    return held


def hostile(name: str) -> Document:
    """The document with ``name`` in the place of every text that a stranger may choose."""

    def filled(value: Any, key: str = "") -> Any:
        if isinstance(value, str):
            return value if key in _KEPT else name
        if isinstance(value, list):
            return [filled(one, key) for one in value]
        if isinstance(value, dict):
            if key == "environment":
                return {name: name}
            return {inner: filled(held, inner) for inner, held in value.items()}
        return value

    held = interleaved_launches()
    for one in held["findings"]:
        side = one["head"] or one["base"]
        side["advice"] = f"Do `{name}`:\n\n```python\n{name}\n```\n\n{name}"
    advised = [(one["head"] or one["base"])["advice"] for one in held["findings"]]
    found = filled(held)
    for one, advice in zip(found["findings"], advised, strict=True):
        (one["head"] or one["base"])["advice"] = advice
    for kept in ("kernels", "step"):  # what these say of their kind decides what is drawn
        _restore(found[kept], held[kept])
    _restore(found["programs"], held["programs"], ("amounts", "base_fingerprint", "head_fingerprint"))
    found["method"]["kind"] = "launches in turns"
    return of(found)


def _restore(found: Any, held: Any, keys: tuple[str, ...] = ("kind", "by_kind")) -> None:
    if isinstance(held, dict):
        for key, value in held.items():
            if key in keys:
                found[key] = value
            else:
                _restore(found[key], value, keys)
    elif isinstance(held, list):
        for one, other in zip(found, held, strict=True):
            _restore(one, other, keys)
