"""The document of a plan, ``perfscope.plan/1``: the machine, the model, the front, and what would change the order.

It is read as untrusted input: bounded, with errors of one line.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from perfscope.model.documents.bounded_json import Count, Ns, Number, Texts, Value, read_document, schema_of
from perfscope.plugins.plan.candidate import Candidate
from perfscope.plugins.plan.exchanges import Planned

SCHEMA = "perfscope.plan/1"
FILE = "plan.json"
MOST_BYTES = 16 << 20
MOST_ROWS = 4096


class PlannedPart(Value, frozen=True, kw_only=True):
    """A part of a step, ns; in each scenario the parts add up to the step."""

    name: str
    low_ns: Ns
    middle_ns: Ns
    high_ns: Ns


class PlannedBytes(Value, frozen=True, kw_only=True):
    """A category of memory of one device, in bytes."""

    name: str
    low: Count
    high: Count


class PlannedExchange(Value, frozen=True, kw_only=True):
    """Equal exchanges of one device in a step, with the links that they run over."""

    exchange: Planned
    devices: Count
    nodes: Count
    low_ns: Ns
    """All of them together, whether hidden or not."""
    high_ns: Ns


class PlannedCandidate(Value, frozen=True, kw_only=True):
    """One way to run the model. Times are modelled; bytes are of the device that needs most."""

    candidate: Candidate
    micro_batches: Count
    layers: tuple[Count, ...]
    """Layers of each stage."""
    basis: Literal["modelled", "compiled"] = "modelled"
    """``modelled``: by closed formulas; ``compiled``: from the compiled program, with its modelled time."""
    step_low_ns: Ns
    step_middle_ns: Ns
    step_high_ns: Ns
    memory_low: Count
    memory_high: Count
    fits: bool
    """Whether the high end of its memory fits; if not, the low end does."""
    tokens_per_s_low: Number | None = None
    """Null if the tokens of a step are unknown."""
    tokens_per_s_high: Number | None = None
    price_low: Number | None = None
    """Price of a million tokens, in the currency of ``--price``; null without one."""
    price_high: Number | None = None
    mfu_low: Number | None = None
    """Model FLOPs without recomputation over the peak, 0 to 1."""
    mfu_high: Number | None = None
    equal_to_best: bool
    """Whether no order of the two holds in all scenarios."""
    alike: Count = 0
    """Candidates on the front with the same mesh that are not listed."""
    account: tuple[PlannedPart, ...] = ()
    memory: tuple[PlannedBytes, ...] = ()
    exchanges: tuple[PlannedExchange, ...] = ()
    folder: str = ""
    """Run folder of the compiled program."""


class Sensitivity(Value, frozen=True, kw_only=True):
    """The assumption that decides most which of two candidates is faster."""

    other: Count
    """Number of the other candidate in ``candidates``; it is compared with the first."""
    assumption: str
    text: str
    ratio_low: Number
    """Step of the other over that of the first: at the fast end of the assumption, all others in the middle."""
    ratio_high: Number
    changes_order: bool
    at: Number | None = None
    """Position of the assumption, 0 fast to 1 slow, at which both take equally long; null if the order holds."""
    measurement: str


class Searched(Value, frozen=True, kw_only=True):
    """Numbers of the search."""

    candidates: Count
    too_large: Count
    """Left out because they do not fit, by the bound or by their memory at the low end."""
    cannot_win: Count
    """Left out by the bound of time."""
    evaluated: Count
    front: Count
    complete: bool
    """False: the budget of time ended it."""
    seconds: Number


class Plan(Value, frozen=True, kw_only=True):
    """All of a plan."""

    schema: str = SCHEMA
    name: str
    parameters: Count
    active_parameters: Count
    """Parameters that multiply one token, without the embedding."""
    experts: Count = 0
    target: str
    devices: Count
    memory_bytes: Count
    """Memory of one device."""
    usable_bytes: Count
    """Without the headroom."""
    global_batch: Count
    sequence: Count
    created_utc: str
    basis: Literal["modelled"] = "modelled"
    price_per_hour: Number | None = None
    calibrated_by: str = ""
    """Recording that narrowed the assumptions; empty without one."""
    candidates: Annotated[tuple[PlannedCandidate, ...], msgspec.Meta(max_length=MOST_ROWS)]
    """The best of each mesh on the front: those that fit at the high end first, by their middle time."""
    sensitivities: Annotated[tuple[Sensitivity, ...], msgspec.Meta(max_length=MOST_ROWS)] = ()
    """The most sensitive assumption of each candidate that is equal to the first."""
    searched: Searched
    assumptions: Texts = ()
    notes: Texts = ()


def now() -> str:
    """The moment for a document."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def dump(plan: Plan) -> bytes:
    """A document as UTF-8 JSON."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def load(path: Path) -> Plan:
    """The document in a file or a folder. ``DataError`` in one line for whatever else."""
    file = path / FILE if path.is_dir() else path
    return read_document(file, Plan, SCHEMA, what="a plan", most_bytes=MOST_BYTES)


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a document, made from the types that read it (docs/plan-schema.json)."""
    return schema_of(Plan, SCHEMA, what="A plan")
