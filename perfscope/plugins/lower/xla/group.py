"""Rows of one kind at one line, as a fate."""

from __future__ import annotations

from typing import Literal

from perfscope.analyzers.hlo import Cost
from perfscope.plugins.lower.document import Fate, What
from perfscope.plugins.lower.program import Grouped, code_at, names


def work(once: Cost, runs: int) -> int:
    """FLOPs and transcendentals of all runs."""
    return (once.flops + once.transcendentals) * runs


def fate(
    what: What, program: str, place: str, group: Grouped, reason: str, *, times: int = 0, before: str = "",
    after: str = "", by: Literal["program", "compiler"] = "program",
) -> Fate:  # fmt: skip
    """The fate of a line from its group."""
    return Fate(
        what=what, program=program, place=place, code=code_at(place), phases=tuple(group.phases), by=by,
        times=times or group.count, before=before, after=after, bytes=group.bytes, flops=group.flops, reason=reason,
        ops=names(group.names), kernels=names(group.kernels),
    )  # fmt: skip
