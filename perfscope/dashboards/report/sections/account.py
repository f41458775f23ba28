"""Account of the step: device time by cause, host time by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.analyzers.time import least_computing
from perfscope.dashboards.report.blocks import Block, Column, Section, notes, table
from perfscope.model.documents.causes import BUSY, CAUSES, LEAST_SHARE, cause_words
from perfscope.model.trace import MISSING
from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.time import HostAccount, StepAccount

NAME_LIMIT = 40
"""Characters of a device's name."""

TITLE = "Where the step goes"

NAMED_SHARE = 0.05
"""Smallest share of the steps at which communication or copies are named in the sentence on busy devices."""


class AccountRow(Struct, frozen=True):
    """A cause, or a part of the host's time. ``time_ns`` is the mean over steps."""

    what: str
    time_ns: int
    share: float


def _columns(what: str) -> tuple[Column[AccountRow], ...]:
    return (
        Column(what, lambda row: row.what),
        Column("time", lambda row: row.time_ns, "ns"),
        Column("share", lambda row: row.share, "share"),
    )


def account_sections(accounts: Sequence[StepAccount]) -> tuple[Section, ...]:
    """The account of the device that computes least; no section without an account."""
    account = least_computing(accounts)
    if account is None:
        return ()
    on_host, means = account.device == MISSING, account.mean_ns
    rows = [
        AccountRow(cause_words(cause, on_host=on_host), means[cause], value / account.whole_ns)
        for cause, value in account.total_ns.items()
        if value >= LEAST_SHARE * account.whole_ns
    ]
    blocks: tuple[Block, ...] = (table(_columns("cause"), rows, few=len(CAUSES), bar="parts"), *notes(_phases(account)))
    return (Section(title=TITLE, summary=_title(account, sum(item.whole_ns > 0 for item in accounts)), blocks=blocks),)


def busy_fact(accounts: Sequence[StepAccount]) -> str:
    """``'device busy 63.0% of the step'``; ``''`` without an account."""
    judged = [account for account in accounts if account.whole_ns]
    return _busy(judged) if judged else ""


def explained_share(accounts: Sequence[StepAccount]) -> float | None:
    """Share of the time that has a known cause, 0 to 1; ``None`` without an account."""
    whole = sum(account.whole_ns for account in accounts)
    return 1 - sum(account.total_ns["unexplained"] for account in accounts) / whole if whole else None


def _phases(account: StepAccount) -> str:
    """Busy time by phase, in the order of a step, as shares of the busy time (not of the step)."""
    steps, busy = max(1, len(account.numbers)), account.busy_ns
    if not any(value for phase, value in account.phases_ns.items() if phase not in ("not_told", "communication")):
        return ""
    parts = ", ".join(
        f"{'unknown' if phase == 'not_told' else phase} {format_ns(value // steps)} ({100 * value / busy:.1f}%)"
        for phase, value in account.phases_ns.items()
        if value >= LEAST_SHARE * busy
    )
    return f"{'ops' if account.device == MISSING else 'device work'} by phase: {parts}"


def _title(account: StepAccount, devices: int) -> str:
    whose = "the host" if account.device == MISSING else f"{sanitize(account.name, NAME_LIMIT) or 'device'}"
    whose += "" if account.device == MISSING else f" ({account.ordinal})"
    whose += "" if account.rank is None else f", rank {account.rank}"
    whose += f", computes least of {devices:,}" if devices > 1 else ""
    count = len(account.numbers)
    mean = format_ns(sum(account.mean_ns.values()))
    if not count:
        return f"{whose}: whole capture, {mean}"
    if account.cold:
        mean += f" ({len(account.cold):,} that compiled left out)"
    if account.outliers:
        several = "s" if len(account.outliers) > 1 else ""
        mean += f" ({len(account.outliers):,} outlier{several} left out: {_numbers(account.outliers)})"
    return f"{whose}: {f'mean of {count:,} profiled steps' if count > 1 else 'one profiled step'}, {mean}"


def _numbers(steps: Sequence[int]) -> str:
    more = f" and {len(steps) - MOST_NAMED:,} more" if len(steps) > MOST_NAMED else ""
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps[:MOST_NAMED]))}{more}"


def _busy(accounts: Sequence[StepAccount]) -> str:
    of = "the step" if any(account.numbers for account in accounts) else "the capture"
    whole = sum(account.whole_ns for account in accounts)
    if all(account.device == MISSING for account in accounts):
        ops = sum(account.total_ns["compute"] for account in accounts)
        return f"no GPU/TPU activity recorded; ops of the host take {format_share(ops, whole)} of {of}"
    count = len(accounts)
    devices = "device" if count == 1 else "devices"
    parts = [
        (cause_words(cause, on_host=False), sum(account.total_ns[cause] for account in accounts)) for cause in BUSY
    ]
    busy = " + ".join(f"{words} {format_share(time, whole)}" for words, time in parts if time >= NAMED_SHARE * whole)
    several = "" if count == 1 else f" (mean of {count:,})"
    if any(time >= NAMED_SHARE * whole for _, time in parts[1:]):
        return f"{devices} busy {format_share(sum(time for _, time in parts), whole)} of {of}{several}: {busy}"
    return f"{devices} busy {format_share(sum(time for _, time in parts), whole)} of {of}{several}"


# The host.


MOST_NAMED = 3
"""Most parts named in the summary."""

_HOST_WORDS: dict[str, str] = {
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
    "other_ranks": "waiting for other ranks",
    "sleeping": "sleeping or waiting for a lock",
    "other_threads": "while other threads ran ops",
    "python": "code outside every op",
    "core_wait": "waiting for a core",
}


def host_sections(hosts: Sequence[HostAccount], accounts: Sequence[StepAccount]) -> tuple[Section, ...]:
    """Host time of the rank whose device account is shown; no section if that account is the host's own."""
    device = least_computing(accounts)
    if device is None or device.device == MISSING:
        return ()
    host = next((host for host in hosts if host.rank == device.rank and host.whole_ns), None)
    if host is None:
        return ()
    steps = max(1, len(host.numbers))
    parts = {part: time for part, time in host.total_ns.items() if time >= LEAST_SHARE * host.whole_ns}
    rows = [AccountRow(_HOST_WORDS[part], time // steps, time / host.whole_ns) for part, time in parts.items()]
    named = sorted(parts, key=lambda part: -parts[part])[:MOST_NAMED]
    whose = f"thread {sanitize(host.thread, NAME_LIMIT)}" if host.thread else "main thread"
    return (
        Section(
            title="Where the host's time goes",
            summary=f"{whose}{'' if host.rank is None else f', rank {host.rank}'}: "
            + ", ".join(f"{_HOST_WORDS[part]} {format_share(parts[part], host.whole_ns)}" for part in named)
            + f" of {format_ns(host.whole_ns // steps)}",
            blocks=(table(_columns("the host was"), rows, few=len(_HOST_WORDS), bar="parts"),),
        ),
    )
