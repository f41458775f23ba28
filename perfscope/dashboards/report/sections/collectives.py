"""The ranks of a job and their collectives as rows and sentences, the same for every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscope.model.units import format_bytes, format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.ranks import CollectiveKind, PairKind, RankGroup, RankTotal
    from perfscope.analyzers.sections.collectives import CollectivesSection, JobCollectives

MOST_GROUPS = 6
"""Groups that are told; a mesh of three axes has a few of each."""

Cells = tuple[tuple[str, str], ...]
"""(column, cell); the same columns in every row of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job."""

    title: str
    member: str
    """``rank`` or ``device``: what stands side by side."""
    headline: str
    """What the ranks did together, in a sentence."""
    kinds: tuple[Cells, ...]
    kinds_left: int
    pairs: tuple[Cells, ...]
    """Messages between two ranks."""
    pairs_left: int
    ranks: tuple[Cells, ...]
    ranks_left: int
    groups: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesView:
    """The jobs that were compared."""

    jobs: tuple[JobView, ...]
    notes: tuple[str, ...]


def collectives_view(section: CollectivesSection) -> CollectivesView | None:
    """The section as rows; ``None`` where no two traces are ranks of one job."""
    if not section.jobs and not section.problems:
        return None
    notes = [sanitize(problem) for problem in section.problems]
    if section.jobs_left:
        notes.append(f"and {section.jobs_left:,} more jobs")
    return CollectivesView(jobs=tuple(map(_job, section.jobs)), notes=tuple(notes))


def _job(job: JobCollectives) -> JobView:
    return JobView(
        title=f"Collectives of {job.label}",
        member=job.members,
        headline=_headline(job),
        kinds=tuple(_kind(kind, job.members) for kind in job.kinds),
        kinds_left=job.kinds_left,
        pairs=tuple(map(_pair, job.pairs)),
        pairs_left=job.pairs_left,
        ranks=tuple(_rank(total, job.members) for total in job.ranks),
        ranks_left=job.ranks_left,
        groups=tuple(_group(group) for group in job.groups[:MOST_GROUPS])
        + ((f"and {more:,} more groups",) if (more := job.groups_left + len(job.groups[MOST_GROUPS:])) else ()),
        notes=(*(sanitize(note) for note in job.notes), *_caveats(job.kinds), *_clocks(job)),
    )


def _headline(job: JobCollectives) -> str:
    messages = f"{job.paired:,} messages between two {job.members}s paired" if job.paired else ""
    if not job.matched:
        return messages or f"nothing matched on {len(job.recorded):,} {job.members}s"
    waits = sorted(job.ranks, key=lambda one: one.wait_ns)
    said = f"{job.matched:,} collectives matched on {len(job.recorded):,} {job.members}s"
    if messages:
        said += f", {messages}"
    if not waits:
        return said
    least, most = waits[0], waits[-1]
    between = (
        f"{format_ns(least.wait_ns)} ({job.members} {least.rank}) to "
        f"{format_ns(most.wait_ns)} ({job.members} {most.rank})"
        if least.rank != most.rank
        else format_ns(most.wait_ns)
    )
    return (
        f"{said}: the collectives themselves took {format_ns(most.core_ns)}, {job.members}s waited {between} for each "
        "other"
    )


def _kind(kind: CollectiveKind, member: str) -> Cells:
    algorithm = " ".join(filter(None, (kind.algorithm, kind.protocol)))
    whole = sum(kind.duration_ns.values())
    return (
        ("collective", sanitize(kind.operation)),
        ("group", ranks_text(kind.group) + (f" {kind.axis}?" if kind.axis else "")),
        ("message", "" if kind.message_bytes is None else format_bytes(kind.message_bytes)),
        ("calls", f"{kind.count:,}"),
        ("each takes", format_ns(kind.median_core_ns)),
        ("bus bandwidth", "" if kind.bus_bandwidth is None else f"{kind.bus_bandwidth / 1e9:.3g} GB/s"),
        (f"wait of a {member}", format_ns(kind.mean_wait_ns)),
        ("waiting", format_share(sum(kind.wait_ns.values()), whole)),
        ("algorithm", sanitize(algorithm)),
    )


def _pair(kind: PairKind) -> Cells:
    return (
        ("message", f"rank {kind.source} to {kind.destination}"),
        ("size", "" if kind.message_bytes is None else format_bytes(kind.message_bytes)),
        ("sent", f"{kind.count:,}"),
        ("each takes", format_ns(kind.median_core_ns) if kind.count > kind.ahead else "sent ahead"),
        ("bandwidth", "" if kind.bandwidth is None else f"{kind.bandwidth / 1e9:.3g} GB/s"),
        ("sender waited", format_ns(kind.send_wait_ns)),
        ("receiver waited", format_ns(kind.receive_wait_ns)),
        ("sent ahead", f"{kind.ahead:,}"),
    )


def _rank(total: RankTotal, member: str) -> Cells:
    return (
        (member, str(total.rank)),
        ("collectives", f"{total.collectives:,}"),
        ("waited", format_ns(total.wait_ns)),
        ("in collectives", format_ns(total.core_ns)),
        ("exposed", "" if total.exposed_ns is None else format_ns(total.exposed_ns)),
        ("came last", f"{total.last:,}"),
    )


def ranks_text(ranks: Sequence[int]) -> str:
    """``0-7``, ``0, 2``, ``0, 8, ... 56``."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks)) if len(ranks) <= 4 else f"{ranks[0]}, {ranks[1]}, ... {ranks[-1]}"


def _group(group: RankGroup) -> str:
    guess = f"looks like {group.axis}: {group.why}" if group.axis else group.why
    known = "" if group.recorded else ", members not recorded"
    return sanitize(f"ranks {ranks_text(group.ranks)}{known}: {guess}")


def _caveats(kinds: Sequence[CollectiveKind]) -> tuple[str, ...]:
    """Each once."""
    return tuple(dict.fromkeys(caveat for kind in kinds for caveat in kind.caveats))


def _clocks(job: JobCollectives) -> tuple[str, ...]:
    if not job.clock_uncertainty_ns:
        return ()
    return (f"ends of a collective on the ranks agree to {format_ns(job.clock_uncertainty_ns)}",)
