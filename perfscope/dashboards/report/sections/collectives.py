"""Collectives of a job's ranks: their durations, and who waited for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Column, Listing, Section, Text, notes, table, tables
from perfscope.model.units import format_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.ranks import CollectiveKind, PairKind, RankGroup, RankTotal
    from perfscope.analyzers.sections.collectives import CollectivesSection, JobCollectives
    from perfscope.dashboards.report.blocks import Block


def collectives_sections(section: CollectivesSection) -> tuple[Section, ...]:
    """A section per job; empty unless at least two traces are ranks of one job."""
    jobs = tuple(map(_job, section.jobs))
    left = (f"and {section.jobs_left:,} more jobs",) if section.jobs_left else ()
    remarks = notes(*section.problems, *left)
    return (*jobs, Section(title="Collectives", blocks=remarks)) if remarks else jobs


def _job(job: JobCollectives) -> Section:
    caveats = dict.fromkeys(caveat for kind in job.kinds for caveat in kind.caveats)
    clocks = f"ends of a collective on the ranks agree to {format_ns(job.clock_uncertainty_ns)}"
    remarks = (*caveats, *((clocks,) if job.clock_uncertainty_ns else ()))
    return Section(
        title=f"Collectives of {job.label}",
        summary=_summary(job),
        blocks=(*_tables(job), *(Text(note, warning=True) for note in job.notes), *_listings(job, remarks)),
    )


def _tables(job: JobCollectives) -> tuple[Block, ...]:
    return tables(
        table(_kind_columns(job.members), job.kinds, few=3, left=job.kinds_left, rest="kinds, which took less"),
        table(
            PAIRS, job.pairs, title="messages between two ranks", few=3, left=job.pairs_left,
            rest="kinds of messages, which took less",
        ),
        table(
            _rank_columns(job.members), job.ranks, title=f"{job.members}s side by side", detail=True,
            left=job.ranks_left, rest=f"{job.members}s, which waited less",
        ),
    )  # fmt: skip


def _listings(job: JobCollectives, remarks: tuple[str, ...]) -> tuple[Block, ...]:
    groups = Listing(items=tuple(map(_group, job.groups)), left=job.groups_left, rest="process groups", detail=True)
    return tuple(listing for listing in (groups, Listing(items=remarks, few=2, rest="notes")) if listing.items)


def _summary(job: JobCollectives) -> str:
    """Sentence on the collectives of all ranks."""
    messages = f"{job.paired:,} messages between two {job.members}s paired" if job.paired else ""
    if not job.matched:
        return messages or f"nothing matched on {len(job.recorded):,} {job.members}s"
    text = f"{job.matched:,} collectives matched on {len(job.recorded):,} {job.members}s"
    if messages:
        text += f", {messages}"
    waits = sorted(job.ranks, key=lambda total: total.wait_ns)
    if not waits:
        return text
    least, most = waits[0], waits[-1]
    between = format_ns(most.wait_ns)
    if least.rank != most.rank:
        between = (
            f"{format_ns(least.wait_ns)} ({job.members} {least.rank}) to "
            f"{format_ns(most.wait_ns)} ({job.members} {most.rank})"
        )
    return (
        f"{text}: the collectives themselves took {format_ns(most.core_ns)}, {job.members}s waited {between} for each "
        "other"
    )


def _kind_columns(member: str) -> tuple[Column[CollectiveKind], ...]:
    return (
        Column("collective", lambda kind: kind.operation),
        Column("group", lambda kind: ranks_text(kind.group) + (f" {kind.axis}?" if kind.axis else ""), drop=4),
        Column("message", lambda kind: kind.message_bytes, "bytes", drop=3),
        Column("calls", lambda kind: kind.count, "count"),
        Column("each takes", lambda kind: kind.median_core_ns, "ns"),
        Column("bus bandwidth", lambda kind: kind.bus_bandwidth, "bytes_per_s"),
        Column(f"wait per {member}", lambda kind: kind.mean_wait_ns, "ns"),
        Column("waiting", _waiting, "share", drop=2),
        Column("algorithm", lambda kind: " ".join(filter(None, (kind.algorithm, kind.protocol))), drop=1),
    )


def _waiting(kind: CollectiveKind) -> float | None:
    """Share of the collectives' time in which ranks waited, 0 to 1."""
    whole = sum(kind.duration_ns.values())
    return sum(kind.wait_ns.values()) / whole if whole else None


PAIRS: tuple[Column[PairKind], ...] = (
    Column("message", lambda kind: f"rank {kind.source} to {kind.destination}"),
    Column("size", lambda kind: kind.message_bytes, "bytes", drop=2),
    Column("sent", lambda kind: kind.count, "count"),
    Column("each takes", lambda kind: kind.median_core_ns if kind.count > kind.ahead else "sent ahead", "ns"),
    Column("bandwidth", lambda kind: kind.bandwidth, "bytes_per_s"),
    Column("sender waited", lambda kind: kind.send_wait_ns, "ns"),
    Column("receiver waited", lambda kind: kind.receive_wait_ns, "ns"),
    Column("sent ahead", lambda kind: kind.ahead, "count", drop=1),
)


def _rank_columns(member: str) -> tuple[Column[RankTotal], ...]:
    return (
        Column(member, lambda total: total.rank, "count"),
        Column("collectives", lambda total: total.collectives, "count"),
        Column("waited", lambda total: total.wait_ns, "ns"),
        Column("in collectives", lambda total: total.core_ns, "ns"),
        Column("exposed", lambda total: total.exposed_ns, "ns"),
        Column("came last", lambda total: total.last, "count"),
    )


def ranks_text(ranks: Sequence[int]) -> str:
    """``0-7``, ``0, 2``, ``0, 8, ... 56``."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks)) if len(ranks) <= 4 else f"{ranks[0]}, {ranks[1]}, ... {ranks[-1]}"


def _group(group: RankGroup) -> str:
    guess = f"looks like {group.axis}: {group.why}" if group.axis else group.why
    known = "" if group.recorded else ", members not recorded"
    return f"ranks {ranks_text(group.ranks)}{known}: {guess}"
