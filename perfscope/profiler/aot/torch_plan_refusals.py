"""Which kernels of a planned graph inductor's scheduler left apart, and why: each pair once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from perfscope.profiler.aot.torch_inductor import Scheduled
from perfscope.profiler.aot.torch_plan_file import MAX_REFUSALS, PlannedRefusal
from perfscope.profiler.captures.compile_fusion import kernels_apart

NO_SHARED_DATA = "no shared data"
"""The scheduler's reason for pairs that have nothing to do with each other: most of what it says. It is kept where the
second does read what the first writes, in another order."""


def refusals_of(scheduled: Scheduled, chosen: Sequence[Any]) -> tuple[tuple[PlannedRefusal, ...], int]:
    """(refusals between the kernels ``chosen``, how many more there are)."""
    kernels = {kernel.get_name(): index for index, kernel in enumerate(chosen)}
    apart, _ = kernels_apart(scheduled.scheduler, scheduled.refusals)
    found: dict[tuple[int, int, str], PlannedRefusal] = {}
    for one in apart:
        first, second = kernels.get(one["first"]), kernels.get(one["second"])
        if first is None or second is None:
            continue
        if one["reason"].startswith(NO_SHARED_DATA) and not one["shared_bytes"]:
            continue
        pair = (min(first, second), max(first, second))
        reason = _without_names(one["reason"])
        before = found.get((*pair, reason))
        found[*pair, reason] = PlannedRefusal(
            first=pair[0],
            second=pair[1],
            reason=reason,
            times=one["times"] + (before.times if before else 0),
            shared_bytes=max(one["shared_bytes"] or 0, before.shared_bytes or 0 if before else 0),
            common_read_bytes=max(one["common_read_bytes"] or 0, before.common_read_bytes or 0 if before else 0),
            needed_elsewhere=_needed_elsewhere(chosen[first], chosen[second]),
        )
    rows = sorted(
        found.values(),
        key=lambda row: (-(row.shared_bytes or 0), -(row.common_read_bytes or 0), row.first, row.second, row.reason),
    )
    return tuple(rows[:MAX_REFUSALS]), len(rows[MAX_REFUSALS:]) + scheduled.overflow


def _needed_elsewhere(first: Any, second: Any) -> bool:
    """Whether anything but the second (the graph's results too) uses a value that goes from the first to it."""
    inside = {part.get_name() for kernel in (first, second) for part in kernel.get_nodes()}
    read = {dep.name for dep in second.read_writes.reads}
    for output in first.get_outputs():
        if output.get_name() not in read:
            continue
        users = {user.get_name() for user in output.users if not getattr(user, "is_weak", False)}
        if users - inside:
            return True
    return False


def _without_names(reason: str) -> str:
    """Addresses of objects that some reasons print would differ from build to build."""
    return re.sub(r" at 0x[0-9a-f]+", "", reason)
