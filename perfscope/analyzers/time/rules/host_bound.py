"""The device is idle while the host does other work than launching.

Example:
    Before::

        for text in texts:
            train_step(tokenize(text))          # the device waits for the tokenizer

    After::

        for tokens in DataLoader(TokenizedTexts(texts), num_workers=4):
            train_step(tokens)

Why it costs: the host prepares the next work too late because it computes something itself: tokenizing, building
batches, Python loops over data, logging, writing checkpoints, sleeping, collecting garbage. Meanwhile the device has
nothing to do, and a faster device changes nothing.

How it is found: from the account of the step, the idle time in which the host was late, launched nothing for 1 ms or
more, and neither waited for the device, nor for input, nor compiled (`host_sync`, `input_stall` and `warmup_compile`
judge those). After a wait for the device, only idle time longer than that wait counts, because the host could have
worked ahead instead of waiting. The time belongs to the innermost recorded Python function or op, or to the line of its
sampled stacks (`perfscope run`); if the timed steps have neither, to lines sampled in other steps, or to functions of
the detail pass. In JAX programs most of it may be the framework's work for each call of a compiled function, which is
reported as such. Processor time distinguishes a thread that sleeps or waits. A thread that waits for the interpreter's
lock is a separate finding, which names the thread that works in Python meanwhile, and its line. Work of only some steps
belongs to `slow_steps`, saving checkpoints to `checkpoint_stall`; if those rules report nothing, logging in some of the
traced steps is judged here, because its frames are unambiguous, and so is saving in recordings of other tools.

Without an accelerator in the recording, the main thread's time outside every op and data loader is judged, if most
steps have such time: on an accelerator it would be idle time unless the device is still busy. Waiting for a core
(`perfscope run` on Linux) is a separate cause. If it is a tenth of the step, work without a known line or kind is not
reported; work shorter than half of that waiting is never reported. All times are measured; the saving is an upper
bound.

Fix: it depends on the frame with the most time. The program's own work moves out of the loop (done once, before), to
another process (`DataLoader(num_workers=...)`), or to a thread that runs while the device computes. The step, its loop,
a library's own functions and the program's annotated ranges are never proposed as work to move; the finding lists the
lines with the most time instead. Logs and metrics are written every N steps, checkpoints are saved asynchronously
(`torch.distributed.checkpoint.async_save`, `ocp.AsyncCheckpointer`), the garbage collector is frozen after the warm-up
(`gc.freeze()`). If calls of compiled functions take the time, each gets more work: several steps in one `jax.lax.scan`,
larger batches. If the host's work is unknown, the finding has no fix but explains how to record it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from perfscope.analyzers.consequences import FRAMEWORK_SUBJECT
from perfscope.analyzers.examined import host_records
from perfscope.analyzers.spans import removed_time, worst_spans
from perfscope.analyzers.time.account import StepAccount, step_accounts, time_of_cause, warm_accounts
from perfscope.analyzers.time.calls import Framework, framework
from perfscope.analyzers.time.fixes import does, move, situation
from perfscope.analyzers.time.host_activity import NOT_RECORDED, main_thread
from perfscope.analyzers.time.host_lines import HALF, HostLine, HostLines, host_lines
from perfscope.analyzers.time.samples import lock_wait, sampled_site, stacks
from perfscope.analyzers.time.side_work import side_work
from perfscope.analyzers.time.slow_steps import LEAST_SHARE as SLOW_SHARE
from perfscope.analyzers.time.slow_steps import slow_steps
from perfscope.analyzers.time.small_calls import small_call
from perfscope.analyzers.time.steps import timed_cost
from perfscope.analyzers.time.storage import storage_wait
from perfscope.analyzers.time.unjitted import single_operations
from perfscope.analyzers.time.whole_run.cores import doubtful_causes
from perfscope.model.documents.causes import Cause
from perfscope.model.finding import MOST_ROWS, AbstainError, Finding, fit_title
from perfscope.model.frames import is_profilers
from perfscope.model.frames.kinds import ENGINES, WAITS, FrameKind
from perfscope.model.intervals import Intervals, merge
from perfscope.model.severity import HIGH_SHARE, MEDIUM_SHARE
from perfscope.model.trace import MISSING, Trace
from perfscope.model.units import format_share

LEAST_SHARE = HIGH_SHARE
"""Smallest share of the step for all of the host's work: teams schedule a task for a twentieth."""

LEAST_SHARE_ON_HOST = 0.1
"""Smallest share of most steps without an accelerator: other processes of the machine may cause less."""

PART_SHARE = MEDIUM_SHARE
"""Smallest share of the step (without an accelerator, of half of the steps) for a finding about one kind of work."""

MOST_NAMED = 3
"""Maximum number of lines of a loop that are named if none has most of the time."""

_CAUSES: dict[Cause, tuple[str, str]] = {
    "other_host": ("host work", "does other work"),
    "saving": ("saving and logging", "writes checkpoints or logs"),
    "garbage_collection": ("garbage collection", "collects garbage"),
    "sleeping": ("sleeping", "sleeps or waits for a thread"),
}
"""Cause of the account -> subject, and activity of the host if no frame shows more."""

_SUBJECTS: dict[FrameKind, str] = {
    FrameKind.COMPILED_CALL: "calls",
    FrameKind.LOGGING: "saving and logging",
    FrameKind.CHECKPOINT: "saving and logging",
    FrameKind.GARBAGE_COLLECTION: "garbage collection",
    **dict.fromkeys(WAITS, "sleeping"),
    **dict.fromkeys(ENGINES - {FrameKind.COMPILED_CALL}, FRAMEWORK_SUBJECT),
}

examined = host_records


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per kind of host work, for the device that it keeps idle longest."""
    accounts = trace.fact(step_accounts)
    if not accounts:
        raise AbstainError("neither device work nor ops of the host were recorded", ("host_ops",))
    account = max(accounts, key=_host_ns)
    if not account.whole_ns:
        return
    locked = list(_waits_for_lock(trace, account))
    yield from locked
    usual = _usual_ns(trace, account)
    total = usual if keeps_idle(account) else {}
    works: dict[tuple[str, tuple[str | None, str | None]], _Work] = {}
    doubtful = doubtful_causes(account.total_ns, account.whole_ns)
    dispatches = trace.fact(single_operations) is not None or trace.fact(small_call) is not None
    storage = trace.fact(storage_wait)
    for cause in _CAUSES:
        if cause in doubtful:
            continue
        rare = account.device == MISSING and median(account.shares([cause])) < PART_SHARE
        often = total.get(cause, 0) >= max(1, PART_SHARE * sum(usual.values())) and not rare
        if often or (cause == "saving" and _saves_at_times(trace, account)):
            work = _work(trace, account, cause)
            if work.kind is FrameKind.CHECKPOINT and trace.fact(side_work) is not None:
                continue  # `checkpoint_stall` has it
            if storage is not None and work.line.site.where() == storage.site.where():
                continue  # `storage_bound` has it
            if dispatches and work.kind in (*ENGINES, FrameKind.UNKNOWN):
                continue  # `unjitted_step` or `launch_bound` has it, with the function
            if cause == "other_host" and work.kind is FrameKind.UNKNOWN and not work.named and account.lacked_core:
                continue  # it may be a consequence of the waiting
            key = (work.subject, work.place())
            works[key] = work if key not in works else works[key].merged(work)
    for work in works.values():
        yield _finding(trace, account, work, sum(usual[cause] for cause in work.covers_ns))
    if doubtful and not works and not locked:
        waited = format_share(account.total_ns["core_wait"], account.whole_ns)
        raise AbstainError(
            f"the host waited for a core {waited} of the step, and its own work is less than half of that and of "
            "the rest: record again without other programs"
        )


def keeps_idle(account: StepAccount) -> bool:
    """Whether the host's own work is enough of the step to be reported."""
    if account.device == MISSING:
        shares = account.shares(_CAUSES)
        return bool(len(shares)) and median(shares) >= LEAST_SHARE_ON_HOST
    return _host_ns(account) >= LEAST_SHARE * account.whole_ns


def _saves_at_times(trace: Trace, account: StepAccount) -> bool:
    """Whether saving takes much of the traced steps, without a finding of `slow_steps`."""
    worked = account.whole_ns - account.total_ns["core_wait"]
    if account.total_ns["saving"] < max(1, LEAST_SHARE_ON_HOST * worked):
        return False
    slow = trace.fact(slow_steps)
    saves = (FrameKind.LOGGING, FrameKind.CHECKPOINT)
    return slow is None or slow.share < SLOW_SHARE or not any(call.kind in saves for call in slow.calls)


def _host_ns(account: StepAccount) -> int:
    return sum(account.total_ns[cause] for cause in _CAUSES)


class _Work(Struct, frozen=True, kw_only=True):
    """Host time with one fix."""

    subject: str
    verb: str
    kind: FrameKind
    lines: HostLines
    line: HostLine
    """The line that represents it."""
    named: str
    """Function, callee or package with most of the time; ``""`` without one."""
    covers_ns: dict[str, int]
    spans: Intervals

    def place(self) -> tuple[str | None, str | None]:
        """File and function, or the line if the function contains the step."""
        site = self.line.site
        if site.function in (None, "<module>") or self.line.holds_step:
            return site.file, site.where().label()
        return site.file, site.function.rpartition(".")[2]

    def merged(self, other: _Work) -> _Work:
        """Merge the same work, which the account divides between two causes. A line that ran represents it."""
        first, second = sorted((self, other), key=lambda work: -sum(work.covers_ns.values()))
        best = second if second.line.site.exact and not first.line.site.exact else first
        return _Work(
            subject=first.subject, verb=first.verb, kind=first.kind, lines=best.lines, line=best.line,
            named=best.named, covers_ns={**second.covers_ns, **first.covers_ns},
            spans=merge(first.spans, second.spans),
        )  # fmt: skip


def _work(trace: Trace, account: StepAccount, cause: Cause) -> _Work:
    spans = time_of_cause(trace, account, cause)
    lines = host_lines(trace, cause, spans, account)
    kind, (line, share) = lines.kind(), lines.best()
    subject, verb = _CAUSES[cause]
    if kind in _SUBJECTS or cause == "other_host":
        subject, verb = _SUBJECTS.get(kind, "host work"), does(kind)
    elif cause == "sleeping":  # known from its processor time, not from a frame
        verb = "works or waits"
    return _Work(
        subject=subject, verb=verb, kind=kind, lines=lines, line=line,
        named=_named(lines, line) if share > HALF else "", covers_ns={cause: account.total_ns[cause]}, spans=spans,
    )  # fmt: skip


def _named(lines: HostLines, line: HostLine) -> str:
    """Return the package that the line starts, else the function; in a loop or step, its callee."""
    package = lines.package()
    if package:
        return package
    if line.kind in ENGINES:
        return ""
    if line.site.file is None:
        return "" if line.name == NOT_RECORDED else _without_address(line.name)
    function = line.site.function
    if function in (None, "<module>") or line.holds_step:
        if line.calls and line.kind in (FrameKind.USER, FrameKind.LIBRARY, *WAITS):
            return _without_address(line.calls)
        if not line.direct or is_profilers(line.name):
            return ""
        calls = line.name if "): " not in line.name else line.name.rpartition("): ")[2]
        return "" if calls in ("", "<module>", function, NOT_RECORDED) else _without_address(calls)
    return function or ""


def _without_address(name: str) -> str:
    """Return ``acquire`` for ``<built-in method acquire of _thread.lock object at 0x1>``, ``f`` for ``$api.py:9 f``."""
    if name.startswith("$"):
        return name.rpartition(" ")[2]
    if not name.startswith("<built-in"):
        return name
    words = name.rstrip(">").split(" ", 3)
    return words[2] if len(words) > 2 else "a built-in function"


def _usual_ns(trace: Trace, account: StepAccount) -> Mapping[str, int]:
    """Return the time by cause as if all steps of the account were as those without outliers and compilation."""
    usual = next((warm for warm in trace.fact(warm_accounts) if warm.device == account.device), account)
    steps = len(account.numbers) / len(usual.numbers) if usual.numbers else 1.0  # 1.0: a recording without steps
    return {cause: round(steps * ns) for cause, ns in usual.total_ns.items()}


def _finding(trace: Trace, account: StepAccount, work: _Work, cost: int) -> Finding:
    whose = "its ops do not run" if account.device == MISSING else f"{account.name or 'the device'} is idle"
    lines = work.lines.lines
    if work.kind is FrameKind.PROFILER:
        return _of_profiler(work, format_share(cost, account.whole_ns), _MARKS[framework(trace)])
    inner = lines[0].inner if lines else ()
    most = f": mostly in {work.named}" if work.named else ""
    advice = _advice(trace, work)
    return Finding(
        subject=work.subject,
        title=fit_title(f"the host {work.verb}{most}", work.named),
        detail=f"Meanwhile {whose}.{_where_it_is(work)}",
        **timed_cost(trace, cost, account.whole_ns),
        advice=f"{advice}{_SOURCES[work.lines.source]}" if advice else "",
        record="" if advice else _record(trace, work),
        where=work.line.site.where(),
        covers_ns=work.covers_ns,
        evidence=tuple(
            {
                "host_was_in": line.name,
                "site": line.site.where().label(),
                "line_is": line.site.line_is(),
                "idle_ns": round(line.share * cost),
                "pieces": line.pieces,
                "start_ns": line.start_ns,
            }
            for line in (*inner, *lines[1 if inner else 0 :])[:MOST_ROWS]
        ),
        spans=worst_spans(work.spans.starts, work.spans.ends, work.spans.ends - work.spans.starts),
        removes=(removed_time(work.spans),),
    )


_MARKS: dict[Framework, str] = {
    "torch": "`torch.profiler.schedule` and `prof.step()`",
    "jax": "`jax.profiler.StepTraceAnnotation`",
    "none": "an NVTX range around each",
}


def _of_profiler(work: _Work, share: str, marks: str) -> Finding:
    """Return a finding about time that the recording itself causes."""
    return Finding(
        subject="the profiler's own time",
        title=f"the profiler begins or ends in the recorded time: {share} of it",
        severity="low",
        basis="measured",
        advice="",
        about="recording",
        record=f"Mark the steps ({marks}): time outside of them is excluded.",
        where=work.line.site.where(),
        covers_ns=work.covers_ns,
    )


def _advice(trace: Trace, work: _Work) -> str:
    """Return the fix for the kind of frame with most of the time; ``""`` if unknown."""
    where, line = trace.fact(situation), work.line
    nnx = len(trace.rows["samples"]) > 0 and any("flax/nnx/" in text for text in trace.fact(stacks).texts)
    if work.lines.source in ("nothing", "few"):
        return ""
    if work.kind in WAITS and not line.is_users:
        return ""
    fix = where.frame_fix(work.kind, flax_nnx=nnx)
    if fix or work.kind not in (FrameKind.USER, FrameKind.LIBRARY) or not line.is_users or line.site.running:
        return fix
    if not work.named:
        return ""
    if work.kind is FrameKind.LIBRARY or line.holds_step or line.site.function == "<module>":
        return move(f"what `{work.named}` does at {line.site.where().label()}", where)
    return move(f"`{work.named}`", where)


def _where_it_is(work: _Work) -> str:
    """Return the function with most of the time; without one, the lines with most."""
    if work.named:
        return f" Most of the time is in {work.named}."
    known = [line for line in work.lines.lines if line.site.file is not None and not line.site.running]
    shares: dict[str, float] = {}
    for line in known:
        shares[line.site.where().label()] = shares.get(line.site.where().label(), 0.0) + line.share
    most = sorted(shares.items(), key=lambda item: -item[1])[:MOST_NAMED]
    return f" Lines with most of it: {_listed(most)}." if most else ""


def _listed(shares: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{place} ({format_share(share, 1)})" for place, share in shares)


_SOURCES = {
    "recorded": "",
    "nothing": "",
    "few": "",
    "free": " The lines are those of sampled stacks of steps without a profiler, by their shares there.",
    "detail": " The functions are those of the detail pass, by their shares of the time there.",
}
"""Source of the lines -> addition to the advice."""


def _record(trace: Trace, work: _Work) -> str:
    """Return which recording would show more, if no fix is known."""
    if work.kind is FrameKind.COLLECTIVE:
        return "Record all ranks and analyze them together: the rank that comes late shows there."
    if work.lines.source == "free":
        return "Trace more steps (`perfscope run --level deep`): it records which functions run between the ops."
    if len(trace.rows["samples"]) and work.lines.source in ("few", "nothing"):
        return "Run longer, or trace more steps (`perfscope run --steps A:B`): too few stacks were sampled there."
    return trace.fact(situation).record_stacks()


def _waits_for_lock(trace: Trace, account: StepAccount) -> Iterable[Finding]:
    """Yield a finding about a thread that holds the interpreter's lock while the steps' thread waits."""
    waited = lock_wait(trace, trace.fact(main_thread))
    if waited is None or waited.share < LEAST_SHARE_ON_HOST:
        return
    samples, threads = trace.rows["samples"], trace.rows["threads"]
    name = trace.text(int(threads["thread"][samples["thread"][waited.holder]]))
    site = sampled_site(trace, int(samples["frame"][waited.holder]))
    cost = round(waited.share * account.whole_ns)
    yield Finding(
        subject="waiting for the interpreter's lock",
        title=fit_title(f"the host waits for the GIL: held by thread {name}", name),
        detail=f"Meanwhile thread {name} runs {site.function or 'Python'}. Only one thread of a process runs Python at "
        "a time. The account shows waiting inside an op as time of the op.",
        **timed_cost(trace, cost, account.whole_ns),
        advice="Move the work of that thread to a process (`multiprocessing`, `DataLoader(num_workers=...)`), or to a "
        "library that releases the lock while it works.",
        where=site.where(),
        evidence=tuple(
            {
                "lock_held_by": name,
                "site": sampled_site(trace, int(samples["frame"][row])).where().label(),
                "waited_ns": round(share * cost),
            }
            for row, share in waited.lines[:MOST_ROWS]
        ),
    )
