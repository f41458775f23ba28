"""Collectives of a job's ranks: their durations, and who waited for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.results import result_table
from perfscope.dashboards.report.blocks import Column, Listing, Section, Text, notes, table, tables
from perfscope.dashboards.report.results import ranks_text, shown
from perfscope.model.units import format_ns

if TYPE_CHECKING:
    from perfscope.analyzers.ranks import CollectiveKind, PairKind, RankGroup
    from perfscope.analyzers.sections import CollectivesSection, JobCollectives
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
        table(_kind_columns(), job.kinds, few=3, left=job.kinds_left, rest="kinds, which took less"),
        table(
            PAIRS, job.pairs, title="messages between two ranks", few=3, left=job.pairs_left,
            rest="kinds of messages, which took less",
        ),
        table(
            shown(result_table("collective_members")), job.ranks, title=f"{job.members}s side by side", detail=True,
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


def _kind_columns() -> tuple[Column[CollectiveKind], ...]:
    return shown(
        result_table("collective_kinds"), "operation", "members", "message_bytes", "count", "median_core_ns",
        "bus_bytes_per_s", "mean_wait_ns", "waiting", "algorithm",
        drop=("algorithm", "waiting", "message_bytes", "members"),
        members=lambda kind: ranks_text(kind.group) + (f" {kind.axis}?" if kind.axis else ""),
        algorithm=lambda kind: " ".join(filter(None, (kind.algorithm, kind.protocol))),
    )  # fmt: skip


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


def _group(group: RankGroup) -> str:
    guess = f"looks like {group.axis}: {group.why}" if group.axis else group.why
    known = "" if group.recorded else ", members not recorded"
    return f"ranks {ranks_text(group.ranks)}{known}: {guess}"
