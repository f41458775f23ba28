"""From a search to the document: the best of each mesh, their accounts, and what would change their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import peak_flops
from perfscope.plugins.plan.assumptions import UNKNOWNS, Times, Unknown, moved
from perfscope.plugins.plan.candidate import Mesh
from perfscope.plugins.plan.document import (
    Plan,
    PlannedBytes,
    PlannedCandidate,
    PlannedExchange,
    PlannedPart,
    Sensitivity,
    now,
)
from perfscope.plugins.plan.evaluate import ACCOUNT, NS, Evaluated, Evaluator, Problem
from perfscope.plugins.plan.search import Found, equal, usable_bytes

LISTED = 24
"""Meshes in a document."""
SENSITIVE = 8
"""Candidates equal to the best whose most sensitive assumption is named."""
_CATEGORIES = ("weights", "gradients", "optimizer", "activations", "logits", "runtime")


class Chosen(Struct, frozen=True, kw_only=True):
    """Options of the user besides the problem."""

    headroom: float
    price: float | None = None
    """Price of one device for an hour."""
    calibrated_by: str = ""
    notes: tuple[str, ...] = ()


def best_of_meshes(front: Sequence[Evaluated], usable: int) -> list[tuple[Evaluated, int]]:
    """The best of each mesh, and how many others of it are on the front: those that surely fit first, then by time."""
    ordered = sorted(front, key=lambda item: (item.needs > usable, item.middle))
    found: dict[Mesh, list[Evaluated]] = {}
    for item in ordered:
        found.setdefault(item.candidate.mesh, []).append(item)
    return [(items[0], len(items) - 1) for items in found.values()]


def plan_document(problem: Problem, found: Found, chosen: Chosen) -> Plan:
    """The document of a search."""
    usable = usable_bytes(problem, chosen.headroom)
    meshes = best_of_meshes(found.front, usable)[:LISTED]
    best = meshes[0][0]
    evaluator = Evaluator(problem)
    rows = tuple(candidate_row(evaluator, item, best, alike, usable, chosen.price) for item, alike in meshes)
    texts = tuple(f"{unknown.text} ({unknown.source})" for unknown in UNKNOWNS)
    return Plan(
        name=problem.model.name,
        parameters=problem.model.parameters,
        active_parameters=problem.model.active_parameters,
        experts=problem.model.experts,
        target=problem.target.shown,
        devices=problem.target.count,
        memory_bytes=problem.target.memory_bytes or 0,
        usable_bytes=usable,
        global_batch=problem.global_batch,
        sequence=problem.sequence,
        created_utc=now(),
        price_per_hour=chosen.price,
        calibrated_by=chosen.calibrated_by,
        candidates=rows,
        sensitivities=tuple(sensitivities(problem, [item for item, _ in meshes])),
        searched=found.searched,
        assumptions=(*problem.target.assumptions, *texts),
        notes=(*([problem.fabric.words] if problem.fabric.words else []), *problem.model.notes, *chosen.notes),
    )  # fmt: skip


def candidate_row(
    evaluator: Evaluator, item: Evaluated, best: Evaluated, alike: int, usable: int, price: float | None
) -> PlannedCandidate:
    """A candidate of the document. ``alike``: others of its mesh on the front."""
    problem, candidate = evaluator.problem, item.candidate
    per_second = [problem.tokens / (ns / NS) for ns in (item.high, item.low)]
    prices = [None, None] if price is None else [
        price * problem.target.count / 3600 / rate * 1e6 for rate in reversed(per_second)
    ]  # fmt: skip
    peak = peak_flops(problem.target.device, "bfloat16" if candidate.precision == "fp8" else candidate.precision)
    flops = problem.model.model_flops(problem.sequence) / problem.target.count
    shares = [None, None] if not peak else [rate * flops / peak for rate in per_second]
    return PlannedCandidate(
        candidate=candidate, micro_batches=item.micro_batches, layers=item.layers,
        step_low_ns=round(item.low), step_middle_ns=round(item.middle), step_high_ns=round(item.high),
        memory_low=round(item.memory.total.low), memory_high=round(item.needs), fits=item.needs <= usable,
        tokens_per_s_low=per_second[0], tokens_per_s_high=per_second[1], price_low=prices[0], price_high=prices[1],
        mfu_low=shares[0], mfu_high=shares[1], equal_to_best=item is best or equal(item, best), alike=alike,
        account=tuple(_part(name, item.account[name]) for name in ACCOUNT if item.account[name].max() > 0),
        memory=tuple(_bytes(name, item) for name in _CATEGORIES), exchanges=exchange_rows(evaluator, item),
    )  # fmt: skip


def _part(name: str, times: Times) -> PlannedPart:
    return PlannedPart(
        name=name, low_ns=round(times.min()), middle_ns=round(times[0]), high_ns=round(times.max())
    )  # fmt: skip


def _bytes(name: str, item: Evaluated) -> PlannedBytes:
    category = getattr(item.memory, name)
    return PlannedBytes(name=name, low=round(category.low), high=round(category.high))


def exchange_rows(evaluator: Evaluator, item: Evaluated) -> tuple[PlannedExchange, ...]:
    """Exchanges with the links that they run over."""
    rows = []
    for planned in item.planned:
        found = evaluator.range_of(item.candidate, planned)
        rows.append(
            PlannedExchange(
                exchange=planned,
                devices=found.devices,
                nodes=found.nodes,
                low_ns=found.time.low * planned.times,
                high_ns=found.time.high * planned.times,
            )
        )
    return tuple(rows)


def sensitivities(problem: Problem, meshes: Sequence[Evaluated]) -> list[Sensitivity]:
    """The assumption that decides most, for each of the first candidates that are equal to the best."""
    result: list[Sensitivity] = []
    best = meshes[0]
    for number, other in enumerate(meshes[1:], 1):
        if len(result) == SENSITIVE:
            break
        if equal(best, other):
            result.append(_sensitivity(problem, best, other, number))
    return result


def _sensitivity(problem: Problem, best: Evaluated, other: Evaluated, number: int) -> Sensitivity:
    found = []
    for unknown in UNKNOWNS:
        evaluator = Evaluator(replace(problem, scenarios=moved(problem.scenarios, unknown.name)))
        first, second = (evaluator.evaluate(one.candidate, one.layers, one.memory).times for one in (best, other))
        found.append((unknown, second / first, second - first))
    return deciding(found, number)


def deciding(found: Sequence[tuple[Unknown, Times, Times]], number: int) -> Sensitivity:
    """The assumption that changes the order, else the one that moves the ratio most.

    ``found``: for each assumption the ratio and the difference of the two steps at its fast end, in the middle and at
    its slow end. ``number``: of the other candidate.
    """
    unknown, ratios, difference = max(found, key=lambda item: (_changes(item[1]), abs(float(item[1][2] - item[1][0]))))
    return Sensitivity(
        other=number, assumption=unknown.name, text=unknown.text, ratio_low=float(ratios[0]),
        ratio_high=float(ratios[2]), changes_order=_changes(ratios), at=_crossing(difference),
        measurement=unknown.measurement,
    )  # fmt: skip


def _changes(ratios: Times) -> bool:
    return bool(ratios.min() < 1 < ratios.max())


def _crossing(difference: Times) -> float | None:
    """Position at which the difference is 0, on the two lines through its ends and middle."""
    positions = (0.0, 0.5, 1.0)
    for left, right in ((0, 1), (1, 2)):
        one, two = float(difference[left]), float(difference[right])
        if one != two and min(one, two) <= 0 <= max(one, two):
            return float(np.interp(0.0, sorted((one, two)), positions[left : right + 1] if one < two else
                                   positions[left : right + 1][::-1]))  # fmt: skip
    return None
