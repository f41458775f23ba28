"""The step waits until its data has been read from storage.

Example:
    Before::

        class Images(Dataset):
            def __getitem__(self, index):
                return decode(open(self.paths[index], "rb").read())      # one small file per sample

        loader = DataLoader(Images(paths), batch_size=64)

    After::

        shards = webdataset.WebDataset(urls, shardshuffle=100).shuffle(1000).decode("torchrgb")   # read in order
        loader = webdataset.WebLoader(shards, batch_size=64, num_workers=4)

Why it costs: a read returns when storage has delivered the bytes. A process that reads and trains in turns does nothing
else meanwhile, and worker processes that together need more bytes per second than storage delivers keep the step
waiting, whatever their number. Small files and random access are slower than large files that are read in order.

How it is found: sampled stacks (`perfscope run`) show the lines that have little processor time while they run, in the
data loader, its worker processes, or the loop; the share of waiting for a core is subtracted. A call that only reads
(`np.fromfile`, `file.read`) counts with all of its time if most of the bytes come from storage. The system's counters
(`/proc/PID/io`, Linux) show the bytes that the program and its workers read per step, and how many of them came from
storage: the others were in the page cache. Reads from a network's file system may count as read and not as fetched. It
is flagged if half of the time to make a batch is such waiting, and the step waits a twentieth of its time for it. Then
`input_stall` does not report the same waiting. On an accelerator only time in which the device is idle counts.

Fix: read ahead in worker processes if storage can deliver more (`num_workers`, `prefetch_factor`). If it cannot, read
fewer bytes: a compressed or smaller format, smaller images, columns that are used; pack small files into shards that
are read in order (tar, Parquet, ArrayRecord); copy the data to a local disk or to memory before the training.
"""

from __future__ import annotations

from collections.abc import Iterator

from perfscope.analyzers.time.account import step_accounts
from perfscope.analyzers.time.fixes import situation
from perfscope.analyzers.time.side_work import side_work
from perfscope.analyzers.time.storage import TOO_BUSY, StorageWait, storage_bytes, storage_wait, too_busy
from perfscope.model.finding import AbstainError, Finding, Scope, Where, fit_title
from perfscope.model.severity import severity_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns


def examined(trace: Trace) -> Scope:
    """Count the readings of the counters."""
    return Scope(len(trace.rows["storage"]["step"]), "readings of the system's counters of storage")


def check(trace: Trace) -> Iterator[Finding]:
    """Yield one finding about the line that reads."""
    if trace.fact(storage_bytes) is None:
        raise AbstainError("bytes were read at fewer than two steps", ("storage",))
    if too_busy(trace):
        raise AbstainError(TOO_BUSY)
    found, run = trace.fact(storage_wait), trace.fact(side_work)
    if found is None or run is None:
        return
    step = run.whole_ns / run.steps
    cost = round(found.share * step)
    function = found.site.function
    function = found.call if function is None or function.startswith("<") else function
    place = Where(file=found.site.file, line=found.site.line).label()
    rate = found.bytes.fetched / max(1, step)
    yield Finding(
        subject="reading from storage",
        title=fit_title(
            f"the step waits for storage: {format_bytes(found.bytes.read)} per step in {function}", function
        ),
        detail=_detail(found, rate, step - cost, cost),
        severity=severity_of(found.share, 1.0),
        basis="measured",
        advice=_advice(trace, found),
        cost_ns=round(found.share * run.whole_ns),
        cost_ns_per_step=cost,
        untraced_ns_per_step=cost,
        where=found.site.where(),
        covers_ns=_covers(trace, found),
        evidence=(
            {
                "site": place,
                "call": found.call,
                "read_bytes": round(found.bytes.read),
                "fetched_bytes": round(found.bytes.fetched),
                "page_cache_share": round(found.bytes.cached, 4),
                "gb_per_s": round(rate, 4),
                "reading_share": round(found.reading_share, 4),
                "workers": found.workers,
            },
        ),
    )


def _covers(trace: Trace, found: StorageWait) -> dict[str, int]:
    """Return the part of the account of the traced steps that is this waiting."""
    accounts = trace.fact(step_accounts)
    if found.in_loader:
        return {"input": max((account.total_ns["input"] for account in accounts), default=0)}
    return {
        "other_host": max(
            (min(account.total_ns["other_host"], round(found.share * account.whole_ns)) for account in accounts),
            default=0,
        )
    }


def _detail(found: StorageWait, rate: float, rest_ns: float, cost_ns: int) -> str:
    rest = max(1.0, rest_ns)
    text = f"{rate:.3g} GB/s come from storage; {found.bytes.cached:.0%} of what is read is in the page cache. "
    if found.workers:
        return (
            f"{text}{found.workers} workers wait {found.reading_share:.0%} of their time for it. Without waiting the "
            f"steps need {found.bytes.read / rest:.3g} GB/s."
        )
    return (
        f"{text}Reading ahead hides the waiting if storage delivers {found.bytes.read / rest:.3g} GB/s during the rest "
        f"of the step; half as many bytes save about {format_ns(cost_ns / 2)}."
    )


def _advice(trace: Trace, found: StorageWait) -> str:
    fewer = (
        "read fewer bytes (a compressed or smaller format, only what is used). Pack small files into shards that are "
        "read in order, or copy the data to a local disk or memory first."
    )
    if found.workers:
        return f"R{fewer[1:]} More workers help only if storage delivers more when more files are read at once."
    torch = trace.fact(situation).framework == "torch"
    ahead = (
        "`DataLoader(..., num_workers=N, prefetch_factor=4)`"
        if torch
        else "a loader with workers or threads, such as Grain"
    )
    return f"Read ahead: {ahead}. If storage cannot deliver more, {fewer}"
