"""Launches of `perfscope try` that need no process, and the document made of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from perfscope.model.documents.ab import Arm, Launch, Pair, Pairs
from perfscope.plugins.trials.attempts import Attempt, Unchanged
from perfscope.plugins.trials.document import SCHEMA, Try
from perfscope.plugins.trials.interventions.base import Intervention
from perfscope.plugins.trials.judge import Promise, TrialJudge, Trials, document_of
from perfscope.plugins.trials.process_report import ProcessTrial, RecordedValue, ValueKind

STEPS = 30


def value(
    number: float, *, step: int = 0, kind: ValueKind = "loss", name: str = "loss", **more: object
) -> RecordedValue:
    """A recorded scalar."""
    fields: dict[str, object] = {
        "dtype": "float32",
        "size": 1,
        "nonfinite": 0,
        "norm": abs(number),
        "sample": (number,),
    }
    return RecordedValue(kind=kind, name=name, step=step, **{**fields, **more})  # type: ignore[arg-type]


def report(*losses: float, applied: Sequence[str] = (), rss: int = 300 << 20) -> ProcessTrial:
    """A process that recorded these losses, one a step."""
    return ProcessTrial(
        applied={name: (f"{name} did something",) for name in applied},
        values=tuple(value(loss, step=step) for step, loss in enumerate(losses)),
        peak_rss_bytes=rss,
    )


def launch(arm: Arm = "base", *, ms: float = 10.0, pair: int = 0, slot: int = 0, **more: object) -> Launch:
    """A launch whose steps take ``ms``; it takes two seconds besides."""
    fields: dict[str, object] = {
        "phase": "measure",
        "seconds": 2.0 + STEPS * ms / 1e3,
        "code": 0,
        "steps_seen": STEPS,
        "step_ns": (round(ms * 1e6),) * (STEPS - 2),
        "step_source": "optimizer.step",
        "exact": {"steps": STEPS},
        "reports": (report(),),
        "environment": {"torch": "2.13.0"},
    }
    return Launch(arm=arm, pair=pair, slot=slot, **{**fields, **more})  # type: ignore[arg-type]


def pairs_of(base: Sequence[float], head: Sequence[float], **of_head: object) -> Pairs:
    """Measured pairs with these step times in ms."""
    measured: list[Pair] = [
        (launch(ms=before, pair=number), launch("head", ms=after, pair=number, slot=1, **of_head))
        for number, (before, after) in enumerate(zip(base, head, strict=True))
    ]
    return Pairs(calibration=(), measured=tuple(measured), confirming=())


NOISE = (0.998, 1.002, 0.999, 1.001, 1.0, 1.0)
"""Six launches."""


def intervention(name: str, *answers: str, **more: object) -> Intervention:
    """An intervention that does nothing."""
    fields: dict[str, object] = {"title": f"what {name} does", "family": name, "may_change": "The last bits."}
    return Intervention(name=name, framework="any", answers=answers, code=f"{name} = True", **{**fields, **more})  # type: ignore[arg-type]


def attempt(
    name: str, factor: float, *answers: str, losses: Sequence[float] = (3.0, 2.0), **of_head: object
) -> Attempt:
    """An intervention that makes the step ``factor`` times as long, and computes ``losses``."""
    times = [10 * noise for noise in NOISE]
    heads = [10 * factor * noise for noise in reversed(NOISE)]
    return Attempt(
        intervention=intervention(name, *answers),
        head=(name,),
        first=launch("head", reports=(report(*losses, applied=(name,)),)),
        pairs=pairs_of(times, heads, **of_head),
    )


def rejected(name: str, *answers: str, losses: Sequence[float] = (3.0, 2.4)) -> Attempt:
    """An intervention that changes the results."""
    first = launch("head", reports=(report(*losses, applied=(name,)),))
    return Attempt(
        intervention=intervention(name, *answers), head=(name,), first=first, stop="rejected", reason="loss differs"
    )


def left(name: str, reason: str, *answers: str) -> Attempt:
    """An intervention that was not launched."""
    return Attempt(intervention=intervention(name, *answers), head=(name,), stop="not applicable", reason=reason)


def unchanged(*losses: float) -> Unchanged:
    """The unchanged program, with quiet calibration launches."""
    recorded = [launch(slot=slot, phase="warm", reports=(report(*losses),)) for slot in (0, 1)]
    calibration: list[Pair] = [
        (launch(ms=10 * first, phase="calibrate"), launch(ms=10 * second, slot=1, phase="calibrate"))
        for first, second in itertools.pairwise(NOISE)
    ]
    return Unchanged(first=recorded[0], second=recorded[1], calibration=tuple(calibration))


def document(*attempts: Attempt, together: Attempt | None = None, ladder: bool = False, **head: object) -> Try:
    """The document written by `perfscope try`."""
    judge = TrialJudge(pairs=6, least=0.02)
    trials = Trials(
        unchanged=unchanged(3.0, 2.0),
        attempts=attempts,
        together=together,
        promised={"unfused_optimizer": Promise(findings=2, ns=4_000_000), "host_sync": Promise(findings=1, ns=None)},
        ladder=ladder,
    )
    fields: dict[str, object] = {
        "schema": SCHEMA,
        "command": ("train.py", "--lr", "0.1"),
        "created_utc": "2026-11-24T12:00:00+00:00",
        "machine": {"torch": "2.13.0"},
        "record_steps": 2,
    }
    return document_of(trials, judge, 0.02, **{**fields, **head})
