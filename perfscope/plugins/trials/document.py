"""The document ``perfscope.try/1``: interventions that were tried on a program, and their results.

It is read as untrusted input: bounded, with errors of one line.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from perfscope.model.documents.bounded_json import Count, Ns, Number, Texts, Value, read_document, schema_of
from perfscope.model.errors import DataError
from perfscope.model.files import write_atomically
from perfscope.model.untrusted_text import sanitize_value

SCHEMA = "perfscope.try/1"
FILE = "try.json"
MOST_BYTES = 16 << 20
MOST_TRIALS = 512

TrialState = Literal[
    "gain", "slower", "no gain", "cannot tell", "rejected", "not applicable", "not applied", "failed", "not reached"
]
"""``not applicable``: not launched, for a reason that was known before. ``not applied``: launched, and it found nothing
to change. ``cannot tell``: the interval is too wide for an answer."""

ResultsState = Literal["same", "different", "not compared"]


class Results(Value, frozen=True, kw_only=True):
    """The values of a launch compared with those of the baseline."""

    state: ResultsState
    compared: Count = 0
    """Values that both recorded."""
    steps: Count = 0
    """Steps that they are from."""
    largest_error: Number | None = None
    """Relative, of the values that were compared, up to the first that differs."""
    tolerance: Number | None = None
    """Relative, of the value with the largest error."""
    first_step: Count | None = None
    """Step of the first value that differs."""
    what: str = ""
    """That value: ``'loss'``, ``'output of Model'``."""
    layer: str = ""
    """The first module whose output differs, or the parameter that differs most; empty if no name
    is known."""
    reason: str = ""
    """Why values were not compared, or could not be."""


class Baseline(Value, frozen=True, kw_only=True):
    """The unchanged program."""

    step_ns: Number | None = None
    launches: Count = 0
    peak_bytes: Count | None = None
    results: Results
    """Results of a second launch against the first: differences without any change."""


class Trial(Value, frozen=True, kw_only=True):
    """One intervention, or several together, with the result. Times are measured unless marked otherwise."""

    name: str
    title: str
    state: TrialState
    with_others: Texts = ()
    """Interventions that were in both arms: the rungs below, or in the last trial all that are tried together."""
    in_place_of: Texts = ()
    """Interventions in the other arm: a lower rung of the same kind."""
    answers: Texts = ()
    """Rules with a finding in this program that it answers, and signs that its launches show: garbage collection in
    steps, or by the name of the intervention a setting that costs."""
    reason: str = ""
    changed: Texts = ()
    """Changes that it made in the program."""
    predicted_ns: Ns | None = None
    """Per step, an upper bound by the findings it answers (modelled or measured by their rule)."""
    promised_ns: dict[str, Ns] = msgspec.field(default_factory=dict)
    """Rule or sign -> saving that its findings predict."""
    base_ns: Number | None = None
    head_ns: Number | None = None
    effect: Number | None = None
    """Relative change of the step time: -0.1 is 10% faster."""
    low: Number | None = None
    high: Number | None = None
    level: Number | None = None
    """Confidence level of the interval."""
    estimator: str = ""
    """Estimate of a launch: a quantile or the mean of its steady steps."""
    remaining: Number | None = None
    """For a ladder: share of the unchanged program's step time that remains with this and the rungs below, by the
    product of their gains; for all together, as measured."""
    pairs: Count = 0
    needed_pairs: Count | None = None
    results: Results | None = None
    base_bytes: Count | None = None
    head_bytes: Count | None = None
    memory_of: str = ""
    """Source of the bytes: the peak of an allocator, or of the process."""
    startup_ns: Number | None = None
    """Additional time of a launch outside its timed steps: compilation, start of workers. May be negative."""
    payback_steps: Count | None = None
    """Steps after which the gain has paid for ``startup_ns``."""
    may_change: str = ""
    code: str = ""
    remarks: Texts = ()


class Try(Value, frozen=True, kw_only=True):
    """All of `perfscope try`."""

    schema: str
    command: Texts
    created_utc: str
    machine: dict[str, str]
    ladder: bool = False
    """Whether each trial is on top of those before that helped."""
    estimator: str = ""
    least: Number
    """The smallest change of the step time that matters, relative."""
    record_steps: Count
    tolerances: dict[str, Number]
    """Relative, by dtype, of the first step; that of step n is n + 1 times as large."""
    baseline: Baseline
    trials: Annotated[tuple[Trial, ...], msgspec.Meta(max_length=MOST_TRIALS)]
    together: Trial | None = None
    """All that helped, against the baseline."""
    unanswered: Texts = ()
    """Rules with a finding that no intervention answers."""
    notes: Texts = ()
    complete: bool = True
    """False: interrupted, or the budget was used up."""


def dump(document: Try) -> bytes:
    """The document as UTF-8 JSON, its texts without control characters, secrets and homes."""
    return msgspec.json.format(msgspec.json.encode(sanitize_value(msgspec.to_builtins(document))), indent=1) + b"\n"


def load(path: Path) -> Try:
    """The document in a file or in the folder of a try. ``DataError`` in one line for whatever else."""
    file = path / FILE if path.is_dir() else path
    return read_document(file, Try, SCHEMA, what="a try", most_bytes=MOST_BYTES)


# All that was tried by this user on this machine, for the calibration of the rules.

KEPT_FOLDER = "perfscope/tries"
MOST_KEPT = 500


def kept_folder() -> Path:
    """Folder of documents that are kept besides their runs: below ``XDG_STATE_HOME``, else ``~/.local/state``."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / KEPT_FOLDER


def keep(document: Try, name: str) -> None:
    """Keep a copy by its name, and the newest ones only. ``OSError`` where that cannot be written."""
    folder = kept_folder()
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{name}.json", dump(document))
    for file in sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime)[:-MOST_KEPT]:
        file.unlink(missing_ok=True)


def kept() -> list[Try]:
    """The kept documents, oldest first, without unreadable ones."""
    documents = []
    for file in kept_folder().glob("*.json"):
        with contextlib.suppress(DataError):
            documents.append(load(file))
    return sorted(documents, key=lambda document: document.created_utc)


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a document, made from the types that read it."""
    return schema_of(Try, SCHEMA, what="Interventions tried on a program")
