"""The ranks of a job and their collectives in the JSON report."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.analyzers.collectives_section import CollectivesSection, JobCollectives
    from perfscope.analyzers.ranks.pairs import PairKind
    from perfscope.analyzers.ranks.table import CollectiveKind


def collectives_document(section: CollectivesSection) -> dict[str, Any]:
    """The section as dicts and lists; times are integer ns, bandwidths bytes/s."""
    return {
        "jobs": [_job(job) for job in section.jobs],
        "jobs_left": section.jobs_left,
        "problems": list(section.problems),
    }


def _job(job: JobCollectives) -> dict[str, Any]:
    return {
        "label": job.label,
        "members": job.members,
        "world_size": job.world_size,
        "recorded": list(job.recorded),
        "missing": list(job.missing),
        "matched": job.matched,
        "unmatched": job.unmatched,
        "paired": job.paired,
        "pairs": [_pair(kind) for kind in job.pairs],
        "pairs_left": job.pairs_left,
        "clock_offset_ns": job.clock_offset_ns,
        "clock_uncertainty_ns": job.clock_uncertainty_ns,
        "groups": [asdict(group) for group in job.groups],
        "groups_left": job.groups_left,
        "kinds": [_kind(kind) for kind in job.kinds],
        "kinds_left": job.kinds_left,
        "ranks": [asdict(total) for total in job.ranks],
        "ranks_left": job.ranks_left,
        "notes": list(job.notes),
    }


def _pair(kind: PairKind) -> dict[str, Any]:
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


def _kind(kind: CollectiveKind) -> dict[str, Any]:
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
