"""Plans that were compiled to see how good their predictions are, in words and as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.advice.words import describe
from perfscope.model.units import format_bytes, format_count
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.advice.step_model import StepModel
    from perfscope.analyzers.advice.verified import VerifiedPlan

COLUMNS = ("plan", "--checkpoint", "peak predicted", "compiled", "error", "FLOPs again, predicted", "as compiled")
NOTE = (
    "Peaks as predicted (modelled) and as XLA assigned them to the program compiled with the policy; FLOPs that run "
    "again are counted in either program. Nothing ran."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRow:
    """One plan."""

    cells: tuple[str, ...]
    """By `COLUMNS`."""
    reason: str
    """Why there is no compiled program; empty where there is one."""


def verified_rows(model: StepModel, plans: Sequence[VerifiedPlan]) -> tuple[VerifiedRow, ...]:
    """A row for each plan, as given."""
    return tuple(_row(model, one) for one in plans)


def verified_data(model: StepModel, plans: Sequence[VerifiedPlan] | None) -> list[dict[str, Any]] | None:
    """For JSON: bytes and FLOPs as integers, ``None`` for what is not known."""
    if plans is None:
        return None
    return [
        {
            "plan": sanitize(describe(model, one.plan)),
            "checkpoint": one.checkpoint,
            "predicted_peak_bytes": one.predicted_peak_bytes,
            "compiled_peak_bytes": one.compiled_peak_bytes,
            "error": None if one.error is None else round(one.error, 6),
            "predicted_recompute_flops": one.predicted_recompute_flops,
            "compiled_recompute_flops": one.compiled_recompute_flops,
            "folder": sanitize(one.folder),
            "kept": one.kept,
            "reason": sanitize(one.reason, TEXT_LIMIT),
        }
        for one in plans
    ]


def _row(model: StepModel, one: VerifiedPlan) -> VerifiedRow:
    cells = (
        sanitize(describe(model, one.plan)),
        one.checkpoint or "-",
        format_bytes(one.predicted_peak_bytes),
        "-" if one.compiled_peak_bytes is None else format_bytes(one.compiled_peak_bytes),
        "-" if one.error is None else f"{one.error:+.1%}".replace("-0.0%", "0.0%").replace("+0.0%", "0.0%"),
        _flops(one.predicted_recompute_flops),
        _flops(one.compiled_recompute_flops),
    )
    return VerifiedRow(cells=cells, reason=sanitize(one.reason, TEXT_LIMIT))


def _flops(number: int | None) -> str:
    return "-" if number is None else format_count(number)
