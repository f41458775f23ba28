"""The document of a comparison, ``perfscope.compare/1``, as typed values: every report format is made from it.

In CI one job writes it and another one, which does not trust the first, renders it. So it is read as an untrusted
file: its size, depth and lists are bounded, its parts must sum to their whole, unknown keys are ignored, and an error
is one line. Times are ns per step, relative numbers 0.03 for 3%.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from perfscope.model.documents.bounded_json import (
    MANY,
    SOME,
    Count,
    Ns,
    Number,
    Texts,
    Value,
    convert_document,
    decode_document,
    read_document,
    schema_of,
)
from perfscope.model.documents.compared_findings import Carried, Change, FindingChange
from perfscope.model.documents.compared_programs import MetricSides, ProgramDifference
from perfscope.model.errors import DataError
from perfscope.model.results import Unit

__all__ = ["Carried", "Change", "FindingChange"]

SCHEMA = "perfscope.compare/1"
WHAT = "a comparison"

MOST_BYTES = 32 << 20
"""Largest document; ours have a few MiB at most, with 2,000 parts and their keys."""

Verdict = Literal["regression", "improvement", "no change", "inconclusive"]
Headline = Literal[
    "regression", "regression likely", "improvement", "improvement likely", "no change", "not judged", "inconclusive"
]
"""``likely``: by the step time of one launch on each side. ``not judged``: all counts are the same, and one launch on
each side does not tell whether the step time is."""


class Side(Value, frozen=True, kw_only=True):
    """One side of a comparison: its files and hardware."""

    paths: Texts = ()
    formats: Texts = ()
    kind: str = ""
    ranks: Count = 0
    devices: Texts = ()


class Place(Value, frozen=True, kw_only=True):
    """A line (or an op) and its part of a metric."""

    place: str
    base: Number
    head: Number


class MetricValues(MetricSides, frozen=True, kw_only=True):
    """One metric of head against base. ``effect`` and its interval are relative: 0.03 is 3 % more than the base."""

    verdict: Verdict
    known: str
    """How the verdict is known, such as ``paired launches``."""
    better: str = "lower"
    effect: Number | None = None
    low: Number | None = None
    high: Number | None = None
    level: Number | None = None
    """Level of the interval: 0.95 with one look at the launches, more with several."""
    p: Number | None = None
    p_sign_flip: Number | None = None
    robust: Number | None = None
    """Hodges-Lehmann estimate of the effect."""
    pairs: Count = 0
    estimator: str | None = None
    """Statistic that represents a launch."""
    least: Number | None = None
    """The smallest change that matters, relative."""
    needed_pairs: Count | None = None
    """Pairs in all that would settle an inconclusive verdict, by the spread so far."""
    confirmed: bool | None = None
    """A second batch agreed; null: none was run."""
    remarks: Texts = ()


class Metric(MetricValues, frozen=True, kw_only=True):
    """A metric with the places that its change consists of."""

    gates: bool
    """The verdict may fail a build."""
    places: Annotated[tuple[Place, ...], msgspec.Meta(max_length=SOME)] = ()


class CausePart(Value, frozen=True, kw_only=True):
    """A part of the step that belongs to a cause."""

    status: str
    name: str
    phase: str = ""
    base_calls: Number | None = None
    head_calls: Number | None = None
    delta_ns: Ns = 0
    base_ns: Ns | None = None
    head_ns: Ns | None = None
    matched: str | None = None
    counted: bool = True
    """Its number of calls differs, by the program and not by chance."""
    base_names: Texts = ()
    head_names: Texts = ()


class CauseMetric(MetricSides, frozen=True, kw_only=True):
    """A cause's part of an exact metric."""

    base: Number | None
    head: Number | None


class CauseFinding(Value, frozen=True, kw_only=True):
    """A finding that came, went or changed at a cause's place."""

    rule: str
    change: Change
    subject: str = ""
    by_time: bool = False


class CauseValues(Value, frozen=True, kw_only=True):
    """Changes at one place."""

    place: str
    """``file:line``, else module or op; ``''``: unknown."""
    exact: bool
    """Counts differ, not only times."""
    delta_ns: Ns = 0
    """Change of the parts at this place, ns per step."""
    metrics: Annotated[tuple[CauseMetric, ...], msgspec.Meta(max_length=SOME)] = ()
    """Exact metrics that changed at this place."""


class Cause(CauseValues, frozen=True, kw_only=True):
    """Changes at one place with their parts and findings."""

    parts: Annotated[tuple[CausePart, ...], msgspec.Meta(max_length=MANY)] = ()
    findings: Annotated[tuple[CauseFinding, ...], msgspec.Meta(max_length=SOME)] = ()


class KeyValues(Value, frozen=True, kw_only=True):
    """Identity and place of a piece of work, with texts as recorded; ``''``: unknown."""

    kind: str
    cause: str = ""
    """Cause of the account of the step."""
    phase: str = ""
    """``backward``, ``recompute``, or ``''``: forward, optimizer, or unknown."""
    module: str = ""
    """Module (torch) or scope (JAX) of the call."""
    op: str = ""
    """Host op that launched it, or the primitive of a compiled instruction."""
    shapes: str = ""
    file: str = ""
    function: str = ""
    work: str = ""
    """Kernel, direction of a copy or operation of a collective."""


class Key(KeyValues, frozen=True, kw_only=True):
    """A key with its short name, for people."""

    line: int | None = None
    name: str = ""


class PartSide(Value, frozen=True, kw_only=True):
    """A part on one side; ``ns`` a step is its alone."""

    ns: Ns
    calls: Number | None = None
    keys: Annotated[tuple[Key, ...], msgspec.Meta(max_length=SOME)] = ()
    keys_left: Count = 0


class PartValues(Value, frozen=True, kw_only=True):
    """The kind of a part of the step."""

    kind: str
    countable: bool = True
    """Whether the number of calls follows from the program, so that its change is not due to chance."""


class Part(PartValues, frozen=True, kw_only=True):
    """A part of the step; ``count_ns`` and ``each_ns`` sum to ``delta_ns``. ``cause``: of the account, or ``''``."""

    cause: str = ""
    status: str
    name: str
    place: str
    delta_ns: Ns
    count_ns: Ns
    each_ns: Ns
    base: PartSide
    head: PartSide
    matched: str | None = None


class Amount(Value, frozen=True, kw_only=True):
    """ns per step on both sides."""

    base_ns: Ns
    head_ns: Ns


class Account(Value, frozen=True, kw_only=True):
    """Mean step time by cause; the causes sum to it. ``on_host``: no device worked, so it is the host's."""

    base_ns: Ns
    head_ns: Ns
    on_host: bool = False
    causes: dict[str, Amount] = msgspec.field(default_factory=dict)

    def problem(self) -> str | None:
        """The sum that does not add up; ``None``: all do."""
        sums = [sum(getattr(amount, side) for amount in self.causes.values()) for side in ("base_ns", "head_ns")]
        wanted = [self.base_ns, self.head_ns]
        return None if sums == wanted else f"its causes sum to {sums[0]} and {sums[1]} ns, not to {wanted}"


class OtherParts(Value, frozen=True, kw_only=True):
    """The parts that were not written one by one."""

    count: Count = 0
    base_ns: Ns = 0
    head_ns: Ns = 0


class StepValues(Value, frozen=True, kw_only=True):
    """Mean step of one rank on both sides, ns."""

    per: str
    """``step``, or ``trace`` if there are no steps."""
    base_ns: Ns
    head_ns: Ns
    rank: int | None = None
    device: str = ""
    base_steps: Count = 0
    head_steps: Count = 0


class Step(StepValues, frozen=True, kw_only=True):
    """The change of one rank's mean step; its parts sum to it, and those of one cause to that cause of the account."""

    per: Literal["step", "trace"]
    delta_ns: Ns
    parts: Annotated[tuple[Part, ...], msgspec.Meta(max_length=SOME)]
    by_kind: dict[str, Amount] = msgspec.field(default_factory=dict)
    other_parts: OtherParts = OtherParts()

    def problem(self) -> str | None:
        """The sum that does not add up; ``None``: all do."""
        sides = (("base", self.base_ns), ("head", self.head_ns))
        sums = [
            sum(getattr(part, side).ns for part in self.parts) + getattr(self.other_parts, f"{side}_ns")
            for side, _ in sides
        ]
        if sums != [whole for _, whole in sides]:
            return f"its parts sum to {sums[0]} and {sums[1]} ns, not to {self.base_ns} and {self.head_ns}"
        if self.delta_ns != self.head_ns - self.base_ns:
            return "its change is not head minus base"
        for part in self.parts:
            if part.delta_ns != part.head.ns - part.base.ns or part.delta_ns != part.count_ns + part.each_ns:
                return "a part's change is not the sum of what it is made of"
        if self.by_kind:
            kinds = [sum(getattr(amount, f"{side}_ns") for amount in self.by_kind.values()) for side, _ in sides]
            if kinds != [whole for _, whole in sides]:
                return "its kinds do not sum to it"
        return None


TreeTime = Literal["device", "host", "instructions"]
"""Unit of a tree: device work by the call that launched it, calls of the host, or instructions of XLA programs."""


class TreeRow(Value, frozen=True, kw_only=True):
    """A difference between two call trees; calls and times are per step."""

    change: Literal["added", "removed", "moved", "slower", "faster"]
    path: Texts
    was: Texts = ()
    """Former path of a moved node."""
    nodes: Count = 1
    """Number of nodes of the subtree that was added, removed or moved; otherwise 1."""
    base_calls: Number = 0
    head_calls: Number = 0
    base_ns: Ns = 0
    head_ns: Ns = 0
    delta_ns: Ns
    """Its own change, without that of the nodes below it that both have."""


class TreeNode(Value, frozen=True, kw_only=True):
    """A call of either tree, or of both; calls and times are per step. ``parent``: number of the caller, -1: none.

    ``change``: with all below it.
    """

    name: str
    parent: Annotated[int, msgspec.Meta(ge=-1)]
    change: Literal["added", "removed", "moved", "slower", "faster", "equal"]
    base_calls: Number = 0
    head_calls: Number = 0
    base_ns: Ns = 0
    head_ns: Ns = 0


class Tree(Value, frozen=True, kw_only=True):
    """Two call trees: the changes of the rows, ``others_ns`` and ``equal_ns`` sum to head minus base."""

    time: TreeTime
    base_ns: Ns
    head_ns: Ns
    rows: Annotated[tuple[TreeRow, ...], msgspec.Meta(max_length=SOME)]
    nodes: Count = 0
    equal: Count = 0
    """Nodes that are equal on both sides."""
    equal_ns: Ns = 0
    others: Count = 0
    """Rows that were not written."""
    others_ns: Ns = 0
    flame: Annotated[tuple[TreeNode, ...], msgspec.Meta(max_length=SOME)] = ()
    """Both trees as one, callers first; calls that are too short to be seen count for their callers."""

    def problem(self) -> str | None:
        """The sum that does not add up or the order that is wrong; ``None``: all is consistent."""
        if any(node.parent >= number for number, node in enumerate(self.flame)):
            return "a call comes before its caller"
        whole = sum(row.delta_ns for row in self.rows) + self.others_ns + self.equal_ns
        wanted = self.head_ns - self.base_ns
        return None if whole == wanted else f"its rows sum to {whole} ns, not to {wanted}"


class PathRow(Value, frozen=True, kw_only=True):
    """Time on the critical path in work of one name."""

    where: str
    name: str
    base_ns: Ns
    head_ns: Ns


class CriticalPath(Value, frozen=True, kw_only=True):
    """Two critical paths; the rows sum to them."""

    base_ns: Ns
    head_ns: Ns
    rows: Annotated[tuple[PathRow, ...], msgspec.Meta(max_length=SOME)]
    other_rows: OtherParts = OtherParts()

    def problem(self) -> str | None:
        """The sum that does not add up; ``None``: all do."""
        for side in ("base_ns", "head_ns"):
            whole = sum(getattr(row, side) for row in (*self.rows, self.other_rows))
            if whole != getattr(self, side):
                return f"its rows sum to {whole} ns, not to {getattr(self, side)}"
        return None


class Rank(Value, frozen=True, kw_only=True):
    """A rank's step on both sides."""

    rank: int | None
    base_ns: Ns
    head_ns: Ns


class NotLooked(Value, frozen=True, kw_only=True):
    """A metric that one side or both did not record."""

    name: str
    reason: str
    sides: Texts = ()


class Kernel(Value, frozen=True, kw_only=True):
    """A kernel or op over several profiled launches; times in ns per step."""

    name: str
    kind: Literal["changed", "new", "gone"]
    base_ns: Number
    """Typical time over the launches; 0 if the kernel is new. The sides differ by ``effect``."""
    head_ns: Number
    change_ns: Number
    """Head less base."""
    verdict: Verdict
    effect: Number | None = None
    p: Number | None = None
    q: Number | None = None
    """``p`` corrected for the number of tests; new and gone kernels have no ``effect``, ``p`` and ``q``."""


class Launch(Value, frozen=True, kw_only=True):
    """One launch of an arm. ``ns``: typical step time; ``seconds``: duration of the launch."""

    arm: Literal["base", "head"]
    phase: str
    pair: Count
    """Number of the pair; for a launch without a partner, its number among all launches."""
    ns: Number | None = None
    """``None``: it has no steady part, or was profiled."""
    seconds: Number | None = None


class Method(Value, frozen=True, kw_only=True):
    """How it was compared."""

    kind: str = "single captures"
    base_ref: str | None = None
    base_commit: str | None = None
    head_ref: str | None = None
    head_commit: str | None = None
    command: Texts | None = None
    pairs: Count = 0
    confirming_pairs: Count = 0
    profiled: Count = 0
    estimator: str | None = None
    least: Number | None = None
    seed: int | None = None
    level: Number | None = None
    launches: Annotated[tuple[Launch, ...], msgspec.Meta(max_length=SOME)] = ()
    remarks: Texts = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)


class ValueChange(Value, frozen=True, kw_only=True):
    """A value of a result table that differs between rows with the same key."""

    row: str
    """Key of the row."""
    column: str
    unit: Unit
    base: Number | str | None
    head: Number | str | None


class TableChange(Value, frozen=True, kw_only=True):
    """A result table whose rows differ, joined on its key columns; one capture per side, not judged."""

    table: str
    title: str
    added: Count = 0
    """Rows that only head has."""
    removed: Count = 0
    """Rows that only base has."""
    changes: Annotated[tuple[ValueChange, ...], msgspec.Meta(max_length=SOME)] = ()
    """Largest relative change first."""
    changes_left: Count = 0


class Sides(Value, frozen=True, kw_only=True):
    """Two sides, and the facts of a comparison that its document has as they are."""

    base: Side
    head: Side
    cautions: Texts = ()
    """Facts that limit the verdict: other programs, other machines, busy machines."""
    likely: Literal["regression", "improvement"] | None = None
    """Likely change of the step time by one launch per side; ``None`` if it is open."""
    carried: Annotated[tuple[Carried, ...], msgspec.Meta(max_length=MANY)] = ()
    """Largest parts of the change of the step time, largest first; empty if unknown."""
    settle: str = ""
    """The command that settles whether the step time changed, if one launch per side does not."""
    account: Account | None = None
    """Step time by cause, for the rank of ``step``."""
    tree: Tree | None = None
    """Call trees of the rank of ``step``."""
    path: CriticalPath | None = None
    """Critical paths of the rank of ``step``."""
    findings: Annotated[tuple[FindingChange, ...], msgspec.Meta(max_length=MANY)] = ()
    not_looked: Annotated[tuple[NotLooked, ...], msgspec.Meta(max_length=SOME)] = ()
    notes: Texts = ()
    tables: Annotated[tuple[TableChange, ...], msgspec.Meta(max_length=SOME)] = ()
    """Result tables that differ."""


class Document(Sides, frozen=True, kw_only=True):
    """All of a comparison."""

    schema: str
    headline: Headline
    summary: str
    metrics: Annotated[tuple[Metric, ...], msgspec.Meta(max_length=SOME)]
    failed: Texts = ()
    gates: Texts = ()
    """Conditions of ``--fail-on``."""
    beside: Annotated[tuple[Metric, ...], msgspec.Meta(max_length=SOME)] = ()
    programs: Annotated[tuple[ProgramDifference, ...], msgspec.Meta(max_length=SOME)] = ()
    """Compiled programs, by instruction."""
    causes: Annotated[tuple[Cause, ...], msgspec.Meta(max_length=MANY)] = ()
    step: Step | None = None
    worst_rank: Step | None = None
    ranks: Annotated[tuple[Rank, ...], msgspec.Meta(max_length=MANY)] = ()
    kernels: Annotated[tuple[Kernel, ...], msgspec.Meta(max_length=MANY)] = ()
    method: Method = Method()


def read(path: str | Path) -> Document:
    """Read a document from a file; ``DataError`` if the file is unreadable, too large or invalid."""
    return _checked(read_document(Path(path), Document, SCHEMA, what=WHAT, most_bytes=MOST_BYTES), path)


def parse(content: bytes, path: str | Path) -> Document:
    """Parse a document; a ``DataError`` of one line names ``path``."""
    return _checked(decode_document(content, path, Document, SCHEMA, what=WHAT, most_bytes=MOST_BYTES), path)


def of(values: dict[str, Any]) -> Document:
    """Convert the values of a comparison to a document; ``DataError`` if they are invalid."""
    made = "the comparison that was made"
    return _checked(convert_document(values, made, Document, what=WHAT), made)


def _checked(document: Document, path: str | Path) -> Document:
    parts = [(name, getattr(document, name)) for name in ("step", "worst_rank", "account", "tree", "path")]
    for name, part in (*parts, *(("programs", program) for program in document.programs)):
        problem = None if part is None else part.problem()
        if problem is not None:
            raise DataError(f"{path}: not {WHAT}: {name}: {problem}")
    if any(finding.base is None and finding.head is None for finding in document.findings):
        raise DataError(f"{path}: not {WHAT}: a finding that neither side has")
    return document


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a document, made from the types that read it (docs/compare-schema.json)."""
    return schema_of(Document, SCHEMA, what="A comparison")
