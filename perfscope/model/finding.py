"""Results of a rule: findings with a cost, and an outcome that is flagged, clean or abstained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from msgspec import Meta, Struct, field

from perfscope.model.documents.bounded_json import MANY, Ns
from perfscope.model.severity import Severity

if TYPE_CHECKING:
    import numpy as np

    from perfscope.model.trace import Trace

MOST_ROWS = 20
"""Rows of evidence that a rule gives, the worst."""

MOST_SPANS = 1_000
"""Spans of a finding per trace, the costliest."""

TITLE_LENGTH = 90
"""Characters of a finding's title: one line of a report."""

NAME_LENGTH = 12
"""Least length of a shortened name in a title: shorter ones are meaningless."""

PLACE_KEYS = frozenset({"site", "line", "file", "path", "allocated_at", "at"})
"""Keys of evidence whose words are source lines."""

Basis = Literal["measured", "modelled", "structural"]
"""How a cost is known. Structural: it follows from the program alone and carries no time."""

BytesAre = Literal["moved", "freed", "held"]
"""Meaning of a finding's bytes: memory traffic, memory that a fix frees, or memory in use or requested."""

About = Literal["program", "recording"]

Subject = Literal["compile_log", "programs", "ranks", "flight_record"]
"""Logs of torch.compile, compiled or planned programs, jobs of several processes, NCCL's flight recorder."""

Status = Literal["flagged", "clean", "abstained"]
Cell = str | int | float | None


class Where(Struct, frozen=True, kw_only=True):
    """The place of a finding. ``file`` and ``line`` are the user's, never the framework's."""

    op: str | None = None
    """Framework op."""
    kernel: str | None = None
    """Device kernel."""
    module: str | None = None
    """Module of the program."""
    file: str | None = None
    """The user's source file."""
    line: int | None = None
    """Line in that file."""

    def label(self, unknown: str = "-") -> str:
        """The most useful short form: ``train.py:88``, else module, op, kernel or ``unknown``."""
        if self.file:
            return f"{self.file}:{self.line}" if self.line is not None else self.file
        return self.module or self.op or self.kernel or unknown


NOWHERE = Where()


class Excerpt(Struct, frozen=True):
    """The code at a place, as the file had it when the program ran."""

    path: str
    """Absolute path of the file on this machine."""
    first: int
    """Number of the first of ``lines``."""
    lines: tuple[str, ...]


class Span(Struct, frozen=True, kw_only=True):
    """A piece of time in which a finding shows, half open: ns on the clock of its trace, as in the trace's tables."""

    start_ns: int
    """On the clock of that trace."""
    end_ns: int
    """On the clock of that trace."""
    rank: int | None = None
    """Rank of that clock, if a rule compares the ranks of a job."""
    source: int = 0
    """The trace: its place in ``Analysis.sources`` (filled by the engine)."""


class Removed(Struct, frozen=True, kw_only=True, eq=False):
    """Work that a fix removes from a recording: the input of the saving on the critical path."""

    table: Literal["slices", "kernels", "copies", "waits", "idle", "work"]
    """Table of the trace. ``slices``: host time in these spans and all inside them. ``waits``: rows of ``calls`` that
    no longer wait for the device. ``idle``: host time, and delays until work began, in the intervals of ``rows``;
    ``work``: kernels and copies in them, but no collectives."""
    rows: np.ndarray
    """Rows of the table; for ``idle`` and ``work`` (n, 2) intervals, ns on the clock of the trace."""
    left: float | np.ndarray = 0.0
    """Share of their time that remains, 0 to 1: one number, or one per row. Always 0 for intervals."""
    rank: int | None = None
    """Rank of the trace, if a rule compares the ranks of a job."""


ONCE = "once"
"""Mark of a cost that further steps do not pay: it has no share of a step, and may be as long as several."""


class Once(Struct, frozen=True, kw_only=True):
    """That a cost is paid a few times in a run and not in each step: compilations."""

    times: int
    """How often it was paid."""
    steps: int | None = None
    """Steps of the run as far as they are known: findings are ordered by the cost spread over them."""
    last_step: int | None = None
    """Number of the last step that paid; ``None``: unknown, or before the first step."""


class FindingSummary(Struct, frozen=True, kw_only=True):
    """The defect and its cost."""

    subject: str
    """The thing found, short and without numbers: with the rule and ``where`` it is the stable key."""
    title: str
    """The defect in one line of at most ``TITLE_LENGTH`` characters, without the saving, which reports add."""
    severity: Severity
    """Share of the step that fixing it saves at most: high from 5%, medium from 1%."""
    basis: str
    """How the cost is known."""
    cost_ns: Ns | None = None
    """Upper bound of what fixing it saves over the whole trace, or over one run of the program where no source is a
    recording (see cost_over), after overlap; null if no time is known."""
    cost_ns_per_step: Ns | None = None
    """The same for one step; null if no step or no time is known."""
    cost_bytes: Ns | None = None
    """Bytes moved or held for nothing; null if not known."""


class TimedCost(TypedDict):
    """The fields of a ``Finding`` with its cost in time."""

    severity: Severity
    basis: Basis
    cost_ns: int
    cost_ns_per_step: int | None


class FindingHead(FindingSummary, frozen=True, kw_only=True):
    """A finding without its evidence, as comparisons of runs keep it."""

    where: Where = NOWHERE
    advice: str = ""
    """Advice; the first sentence is the fix. ``''``: no fix is known, and ``record`` has the next recording to make."""
    ranks: Annotated[tuple[int, ...], Meta(max_length=MANY)] = ()
    """Ranks that show it (filled by the engine)."""


class Finding(FindingHead, frozen=True, kw_only=True):
    """A defect with its cost. ``cost_ns`` is an upper bound of the saving.

    ``cost_ns`` is over the whole trace, ``cost_ns_per_step`` per step (``None``: no step known or
    no time known). Both are after overlap: they exclude time in which the device was busy anyway. For
    compiled programs without a recording ``cost_ns`` is the modelled cost of one run.
    """

    basis: Basis
    """How the cost is known. Structural: from the program alone, without a time."""
    advice: str
    about: About = "program"
    """Subject of the fix. A fix of the recording saves nothing: reports show it separately, and gates skip it."""
    record: str = ""
    """Recording that would show more, as a sentence with an instruction."""
    detail: str = ""
    """One or two plain sentences more than the title has room for."""
    untraced_ns_per_step: int | None = None
    """Part of ``cost_ns_per_step`` that remains in a step without a profiler (filled by the engine, or by a rule that
    measures such steps); ``None`` if no such step was timed."""
    once: Once | None = None
    """Set if ``cost_ns`` is paid a few times and not in each step; ``cost_ns_per_step`` is then ``None``."""
    path_ns: int | None = None
    """Reduction of all steps together when the recorded dependencies are replayed without the removed work:
    ``cost_ns`` is at most that and 5 % (filled by the engine). ``None``: ``cost_ns`` is the rule's own bound."""
    own_ns: int | None = None
    """The rule's own bound, where ``cost_ns`` is less because of the path (filled by the engine)."""
    path_reason: str | None = None
    """Why the critical path of the recording could not judge ``cost_ns`` (filled by the engine)."""
    run_ns: int | None = None
    """Total for the share of ``cost_ns`` if that is the cost of one run of a compiled program: least time of a run."""
    bytes_are: BytesAre = "moved"
    memory_bytes: int | None = None
    """Total for the share of ``cost_bytes`` if a fix frees them: the memory at its peak."""
    evidence: tuple[Mapping[str, Cell], ...] = ()
    """Rows, worst first, all with the same keys; a key carries its unit (``wait_ns``). ``start_ns`` is a moment on the
    clock of the trace, as in its tables; every other time is a duration."""
    spans: tuple[Span, ...] = ()
    """Its pieces of time, the costliest first and not all of them; empty if unknown."""
    covers_ns: Mapping[str, int] = field(default_factory=dict)
    """Cause -> time in the account of the step that this finding explains, over the whole trace; ns. For the device
    with most of it."""
    count: int = 1
    """Times that the rule found this cause; title and place are those of the costliest (filled by the engine)."""
    removes: tuple[Removed, ...] = ()
    """Work that a fix removes, if known; the engine computes ``path_ns`` from it and drops it."""
    fix_line: int | None = None
    """Line in the file of ``where`` that the fix changes, if it is another one (filled by the engine)."""
    excerpt: Excerpt | None = None
    """The line of ``where`` and two around it, if its file is here and unchanged (filled by the engine)."""
    silenced: str | None = None
    """The reason that a comment at its line or the configuration gives for silencing it (filled by the engine)."""

    @property
    def ordering_ns(self) -> int | None:
        """Sort key of findings, ns: the cost per step; a cost paid once is divided by the number of known steps."""
        costs = (self.untraced_ns_per_step, self.cost_ns_per_step)
        each = next((cost for cost in costs if cost is not None), self.cost_ns)
        if each is None or self.once is None:
            return each
        return each // max(1, self.once.steps or 1)

    @property
    def by_path(self) -> bool:
        """Whether its cost is that of the critical path and not the rule's own bound."""
        return self.path_ns is not None and self.path_ns == self.cost_ns


class Rule(Struct, frozen=True, kw_only=True):
    """A check. ``needs`` are keys of ``Trace.recorded``; absent ones make the rule abstain."""

    id: str
    doc: str
    needs: tuple[str, ...]
    check: Callable[[Trace], Iterable[Finding]]
    judges: tuple[Subject, ...] = ()
    """Subjects of its findings besides the recording of one process."""
    compare: Callable[[Sequence[Trace]], Iterable[Finding]] | None = None
    """Findings that need several programs or runs together; called once, with all traces."""
    plan: Callable[[Trace], Iterable[Finding]] | None = None
    """Findings on a planned PyTorch program (`Trace.torch_plans`), in place of ``check``; it has no other needs."""
    replaces: bool = False
    """Whether findings of ``compare`` on a subject replace those of single traces, because they are more precise."""
    examined: Callable[[Trace], Scope] | None = None
    """Records that the rule examines in a trace. Without it all events that were read are counted."""
    compared: Callable[[Sequence[Trace]], Scope] | None = None
    """Records that ``compare`` examines."""
    rest: Callable[[Trace, Sequence[tuple[str, Finding]]], Iterable[Finding]] | None = None
    """Findings in place of ``check`` after all other rules, from the findings of those: (rule, finding)."""
    last: bool = False
    """Whether it runs after the other rules with ``rest``."""
    device_times: Literal["", "idle", "work"] = ""
    """Times of the device that it judges, where a plug-in declares them."""


class Outcome(Struct, frozen=True, kw_only=True):
    """Result of one rule on the sources: findings, worst first, or why it was not evaluated."""

    rule: str
    """Id of the rule."""
    status: Status
    """Abstained: the rule could not look. That is not clean."""
    reason: str | None = None
    """Why it abstained; of a flagged rule: which sources it could not look at."""
    findings: tuple[Finding, ...] = field(default_factory=tuple)
    """Worst first; empty unless flagged."""
    examined: int = 0
    """Records that the rule examined in all sources together; never 0 if it is clean."""
    examined_what: str = ""
    """Name of these records, in the plural."""
    missing: tuple[str, ...] = ()
    """Keys of ``Trace.recorded`` whose absence is why it was not evaluated."""


class Scope(Struct, frozen=True):
    """Records that a rule examined: the evidence of a clean outcome."""

    count: int
    what: str
    """The records, in the plural: ``'copies'``."""


class AbstainError(Exception):
    """Raised by a rule that cannot be evaluated; the text has the reason and the capture that would help."""

    def __init__(self, reason: str, missing: Sequence[str] = ()) -> None:
        """``missing``: keys of ``Trace.recorded`` without which the rule cannot look."""
        super().__init__(reason)
        self.missing = tuple(missing)


def covered_ns(found: Iterable[tuple[str, Finding]]) -> dict[str, int]:
    """Time by cause that findings explain, ns. Findings of one rule are disjoint in time, those of two may overlap."""
    of_rules: dict[tuple[str, str], int] = defaultdict(int)
    for rule, finding in found:
        for cause, value in finding.covers_ns.items():
            of_rules[cause, rule] += value
    return {cause: max(of_rules[pair] for pair in of_rules if pair[0] == cause) for cause, _ in of_rules}


def fit_title(title: str, *names: str) -> str:
    """The title with ``names`` in it (of functions, kernels, files) shortened until it has ``TITLE_LENGTH`` characters.

    The longest name is shortened first, none below ``NAME_LENGTH`` characters.
    """
    for name in sorted(names, key=len, reverse=True):
        length = max(len(name) - max(len(title) - TITLE_LENGTH, 0), NAME_LENGTH)
        if length < len(name):
            title = title.replace(name, f"{name[: length - 3].rstrip()}...", 1)
    return title


def source_label(rank: int | None, index: int) -> str:
    """Label of one of several sources in evidence; ``index``: its position among them."""
    return f"source {index}" if rank is None else f"rank {rank}"
