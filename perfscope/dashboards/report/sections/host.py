"""What the thread that drives the program did in the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Column, Section, table
from perfscope.dashboards.report.sections.account import LEAST_SHARE, NAME_LIMIT, shown_account
from perfscope.model.trace import MISSING
from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.time import HostAccount, HostPart, StepAccount

MOST_NAMED = 3
"""Parts in the summary."""

_WORDS: dict[HostPart, str] = {
    "ops": "in ops",
    "compiled_regions": "in compiled regions",
    "launch": "launching device work",
    "sync": "waiting for the device",
    "input": "fetching input",
    "compilation": "compiling or loading code",
    "memory": "device memory calls",
    "collective_setup": "setting up collectives",
    "garbage_collection": "garbage collection",
    "saving": "saving and logging",
    "sleeping": "sleeping or waiting for a lock",
    "other_threads": "while other threads ran ops",
    "python": "code outside every op",
}


@dataclass(frozen=True, slots=True)
class HostRow:
    """A part. ``time_ns`` is the mean of the steps."""

    part: str
    time_ns: int
    share: float


COLUMNS: tuple[Column[HostRow], ...] = (
    Column("the host was", lambda row: row.part),
    Column("time", lambda row: row.time_ns, "ns"),
    Column("share", lambda row: row.share, "share"),
)


def host_sections(hosts: Sequence[HostAccount], accounts: Sequence[StepAccount]) -> tuple[Section, ...]:
    """The host of the rank whose device account is shown; nothing where that account is the host's own."""
    device = shown_account(accounts)
    if device is None or device.device == MISSING:
        return ()
    host = next((host for host in hosts if host.rank == device.rank and host.whole_ns), None)
    if host is None:
        return ()
    steps = max(1, len(host.numbers))
    parts = {part: time for part, time in host.total_ns.items() if time >= LEAST_SHARE * host.whole_ns}
    rows = [HostRow(_WORDS[part], time // steps, time / host.whole_ns) for part, time in parts.items()]
    named = sorted(parts, key=lambda part: -parts[part])[:MOST_NAMED]
    whose = f"thread {sanitize(host.thread, NAME_LIMIT)}" if host.thread else "main thread"
    return (
        Section(
            title="Where the host's time goes",
            summary=f"{whose}{'' if host.rank is None else f', rank {host.rank}'}: "
            + ", ".join(f"{_WORDS[part]} {format_share(parts[part], host.whole_ns)}" for part in named)
            + f" of {format_ns(host.whole_ns // steps)}",
            blocks=(table(COLUMNS, rows, few=len(_WORDS), bar="parts"),),
        ),
    )
