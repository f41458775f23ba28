"""The ranks of a job and their collectives as rows and sentences, the same for every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape as escape_html
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.html_page import card
from perfscope.dashboards.report.markdown_text import escape, in_html
from perfscope.dashboards.report.sections.program import cells_table, html_cells_table
from perfscope.dashboards.report.text_tables import fitting, hanging, table_of
from perfscope.model.units import format_bytes, format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

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
    waits = sorted(job.ranks, key=lambda rank_total: rank_total.wait_ns)
    text = f"{job.matched:,} collectives matched on {len(job.recorded):,} {job.members}s"
    if messages:
        text += f", {messages}"
    if not waits:
        return text
    least, most = waits[0], waits[-1]
    between = (
        f"{format_ns(least.wait_ns)} ({job.members} {least.rank}) to "
        f"{format_ns(most.wait_ns)} ({job.members} {most.rank})"
        if least.rank != most.rank
        else format_ns(most.wait_ns)
    )
    return (
        f"{text}: the collectives themselves took {format_ns(most.core_ns)}, {job.members}s waited {between} for each "
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


# The ranks of a job and their collectives in the JSON report.


def collectives_document(section: CollectivesSection) -> dict[str, Any]:
    """The section as dicts and lists; times are integer ns, bandwidths bytes/s."""
    return {
        "jobs": [_job_collectives_formats(job) for job in section.jobs],
        "jobs_left": section.jobs_left,
        "problems": list(section.problems),
    }


def _job_collectives_formats(job: JobCollectives) -> dict[str, Any]:
    return {
        "label": job.label,
        "members": job.members,
        "world_size": job.world_size,
        "recorded": list(job.recorded),
        "missing": list(job.missing),
        "matched": job.matched,
        "unmatched": job.unmatched,
        "paired": job.paired,
        "pairs": [_pair_collectives_formats(kind) for kind in job.pairs],
        "pairs_left": job.pairs_left,
        "clock_offset_ns": job.clock_offset_ns,
        "clock_uncertainty_ns": job.clock_uncertainty_ns,
        "groups": [asdict(group) for group in job.groups],
        "groups_left": job.groups_left,
        "kinds": [_kind_collectives_formats(kind) for kind in job.kinds],
        "kinds_left": job.kinds_left,
        "ranks": [asdict(total) for total in job.ranks],
        "ranks_left": job.ranks_left,
        "notes": list(job.notes),
    }


def _pair_collectives_formats(kind: PairKind) -> dict[str, Any]:
    return {
        "source": kind.source,
        "destination": kind.destination,
        "group": list(kind.group),
        "message_bytes": kind.message_bytes,
        "count": kind.count,
        "ahead": kind.ahead,
        "core_ns": kind.core_ns,
        "median_core_ns": kind.median_core_ns,
        "send_wait_ns": kind.send_wait_ns,
        "receive_wait_ns": kind.receive_wait_ns,
        "bytes_per_s": kind.bandwidth,
    }


def _kind_collectives_formats(kind: CollectiveKind) -> dict[str, Any]:
    """By rank, as a list: keys of a JSON object are texts, ranks are numbers."""
    return {
        "operation": kind.operation,
        "group": list(kind.group),
        "axis": kind.axis,
        "message_bytes": kind.message_bytes,
        "dtype": kind.dtype,
        "algorithm": kind.algorithm,
        "protocol": kind.protocol,
        "count": kind.count,
        "core_ns": kind.core_ns,
        "median_core_ns": kind.median_core_ns,
        "by_rank": [
            {
                "rank": rank,
                "wait_ns": kind.wait_ns[rank],
                "duration_ns": kind.duration_ns[rank],
                "exposed_ns": kind.exposed_ns.get(rank),
            }
            for rank in kind.wait_ns
        ],
        "algorithm_bytes_per_s": kind.algorithm_bandwidth,
        "bus_bytes_per_s": kind.bus_bandwidth,
        "caveats": list(kind.caveats),
    }


# The collectives of a job on a terminal: short by default, every list with ``-v``.


FEW_KINDS = 3
"""Kinds of collectives without ``-v``: those that took longest."""

FEW_PAIRS = 3
"""Kinds of messages between two ranks without ``-v``."""

FEW_NOTES = 2
"""Notes without ``-v``: ranks that are missing and jobs that are mixed come first."""

_GIVE_WAY = ("algorithm", "waiting", "message", "group")
"""Columns that go, in this order, where the terminal is too narrow."""


def collectives_section(view: CollectivesView, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    """Kinds of collectives of each job, and with ``-v`` its ranks and groups. Ends with an empty line."""
    for job in view.jobs:
        yield hanging(f"{job.title}: {job.headline}")
        kinds = job.kinds if verbose else job.kinds[:FEW_KINDS]
        if kinds:
            yield table_of(fitting([dict(cells) for cells in kinds], _GIVE_WAY, width))
        left = job.kinds_left + len(job.kinds) - len(kinds)
        if left:
            yield f"    and {left:,} more kinds, which took less"
        pairs = job.pairs if verbose else job.pairs[:FEW_PAIRS]
        if pairs:
            yield table_of(fitting([dict(cells) for cells in pairs], ("sent ahead", "size"), width))
        unsaid = job.pairs_left + len(job.pairs) - len(pairs)
        if unsaid:
            yield f"    and {unsaid:,} more kinds of messages, which took less"
        if verbose and job.kinds:
            yield table_of(fitting([dict(cells) for cells in job.ranks], (), width))
            if job.ranks_left:
                yield f"    and {job.ranks_left:,} more {job.member}s, which waited less"
            yield from map(hanging, job.groups)
        yield from map(hanging, job.notes if verbose else job.notes[:FEW_NOTES])
        yield ""
    for note in view.notes:
        yield hanging(note)
        yield ""


# The collectives of a job in a comment on a pull request: one line open, the tables folded away.


MOST_KINDS = 8
"""Kinds of collectives in a comment: an overview, the other formats hold all."""

MOST_RANKS = 8
MOST_PAIRS = 8


def collectives_details(view: CollectivesView) -> str:
    """A folded block for each job; its summary is what its ranks did together."""
    parts = [part for job in view.jobs for part in _job_collective_markdown(job)]
    return "\n".join([*parts, *(f"{escape(note)}\n" for note in view.notes)])


def _job_collective_markdown(job: JobView) -> Iterator[str]:
    yield f"<details><summary>{in_html(f'{job.title}: {job.headline}')}</summary>\n"
    if job.kinds:
        yield cells_table(job.kinds[:MOST_KINDS])
    left = job.kinds_left + len(job.kinds[MOST_KINDS:])
    if left:
        yield f"- and {left:,} more kinds"
    if job.pairs:
        yield cells_table(job.pairs[:MOST_PAIRS])
    unsaid = job.pairs_left + len(job.pairs[MOST_PAIRS:])
    if unsaid:
        yield f"- and {unsaid:,} more kinds of messages"
    if job.ranks:
        yield cells_table(job.ranks[:MOST_RANKS])
    more = job.ranks_left + len(job.ranks[MOST_RANKS:])
    if more:
        yield f"- and {more:,} more {job.member}s"
    yield from (f"- {escape(text)}" for text in (*job.groups, *job.notes))
    yield "</details>"


# The collectives of a job in the HTML report: kinds that stack on a phone, ranks folded.


FIRST_KINDS = 5
"""Kinds of collectives that stand open; the others are folded."""


def collectives_cards(view: CollectivesView) -> Iterator[str]:
    """A card for each job."""
    for job in view.jobs:
        yield card(job.title, "".join(_job_html_collectives(job)))
    if view.notes:
        yield card("Collectives", _list(view.notes))


def _job_html_collectives(job: JobView) -> Iterator[str]:
    yield f"<p>{escape_html(job.headline[:1].upper() + job.headline[1:])}.</p>"
    if job.kinds:
        yield html_cells_table(job.kinds[:FIRST_KINDS])
    if job.kinds[FIRST_KINDS:]:
        rest = job.kinds[FIRST_KINDS:]
        yield f"<details><summary>{len(rest)} more kinds</summary>{html_cells_table(rest)}</details>"
    if job.kinds_left:
        yield f'<p class="note">and {job.kinds_left:,} more kinds</p>'
    if job.pairs:
        yield f"<details><summary>messages between two ranks</summary>{html_cells_table(job.pairs)}</details>"
    if job.pairs_left:
        yield f'<p class="note">and {job.pairs_left:,} more kinds of messages</p>'
    if job.ranks:
        left = f'<p class="note">and {job.ranks_left:,} more {job.member}s</p>' if job.ranks_left else ""
        yield f"<details><summary>{job.member}s side by side</summary>{html_cells_table(job.ranks)}{left}</details>"
    if job.groups:
        yield f"<details><summary>process groups</summary>{_list(job.groups)}</details>"
    yield _list(job.notes)


def _list(texts: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{escape_html(text)}</li>' for text in texts)}</ul>" if texts else ""
