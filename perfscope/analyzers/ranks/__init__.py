"""The ranks of one job: matched collectives, clocks, and which rank waits for which."""

from __future__ import annotations

from perfscope.analyzers.ranks.devices import DeviceSet, device_set, is_process, process_sets
from perfscope.analyzers.ranks.hangs import Hang, hang_of
from perfscope.analyzers.ranks.job import Local, has_ranks, locals_of, main_job, named_ranks, over
from perfscope.analyzers.ranks.launched import launched_operations
from perfscope.analyzers.ranks.links import Samples, link_counters, link_use
from perfscope.analyzers.ranks.matching import SAME, Clocks, Matched, PairKind, kinds_of
from perfscope.analyzers.ranks.peers import peers
from perfscope.analyzers.ranks.rank_work import rank_work, received_on_host
from perfscope.analyzers.ranks.sets import (
    NOTED_OFFSET_NS,
    CollectiveKind,
    CollectiveTable,
    RankGroup,
    RankSet,
    RankShare,
    RankTotal,
    rank_sets,
    table_of,
)
from perfscope.analyzers.ranks.tables.single_collectives import SingleCollective, single_collectives
from perfscope.analyzers.ranks.waits import OWN_NAMES, compute_intervals

__all__ = [
    "NOTED_OFFSET_NS",
    "OWN_NAMES",
    "SAME",
    "Clocks",
    "CollectiveKind",
    "CollectiveTable",
    "DeviceSet",
    "Hang",
    "Local",
    "Matched",
    "PairKind",
    "RankGroup",
    "RankSet",
    "RankShare",
    "RankTotal",
    "Samples",
    "SingleCollective",
    "compute_intervals",
    "device_set",
    "hang_of",
    "has_ranks",
    "is_process",
    "kinds_of",
    "launched_operations",
    "link_counters",
    "link_use",
    "locals_of",
    "main_job",
    "named_ranks",
    "over",
    "peers",
    "process_sets",
    "rank_sets",
    "rank_work",
    "received_on_host",
    "single_collectives",
    "table_of",
]
