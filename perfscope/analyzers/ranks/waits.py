"""Waiting at collectives: late arrivals, activity of a late rank before its arrival, and parts of exposed time.

The shortest side of a collective is that of the rank that arrived last. Its lateness is the wait of the next-to-last
rank: had it arrived with that rank, all would have continued that much earlier, and no more. Lateness below the
uncertainty of the two ranks' ends is not counted, nor, for collectives on the host, below a scheduler's time slice. If
a recording has steps, time outside them (building the model, the first compilation) is not counted either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from perfscope.analyzers.ranks.job import Local
from perfscope.analyzers.ranks.matching import Clocks, Group, Matched
from perfscope.analyzers.ranks.sets import RankSet
from perfscope.analyzers.spans import input_slices, union_of
from perfscope.analyzers.time import account_windows, communication_in_steps, exposed_until
from perfscope.model.frames import Frame, Owner, parse_frame
from perfscope.model.intervals import EMPTY, Int64, Intervals, covered, difference_total, intersection, merge, union
from perfscope.model.trace import MISSING, SliceKind, Trace

MOST = 0.5
"""Share of the window from which an activity counts as the rank's activity."""

MOST_OTHERS = 32
"""Number of peers a late rank is compared with, evenly spaced; the median needs no more."""

OWN_NAMES = ("c10d::", "record_param_comms")
"""Prefixes of spans that are a collective's own side on the host."""

COMPUTE, EARLIER, LOADER, HOST, NOTHING = (
    "longer compute",
    "an earlier collective",
    "data loader",
    "host work",
    "host gap",
)
"""``NOTHING``: no work on the device and no op on the host; Python code, a sleep, or waiting for something else."""

EMPTY_ROWS = np.empty(0, np.int64)

SLICE_NS = 10 * 10**6
"""Ten milliseconds. A collective on the host begins when a thread of the rank gets a core; on shared cores it waits for
other time slices (3 to 24 ms with Linux's schedulers).
"""


# Activity of a rank while the others waited for it: compute, communication, data loading, or nothing recorded.
# The rank is first compared with the others: from the previous collective to this one, on each rank's own clock, how
# much more than their median it computed, was in collectives, loaded data or ran ops. An activity that accounts for
# most of its lateness is the answer. Otherwise (the others may have been busy waiting) the window before its arrival is
# examined, as long as the lateness: on the device up to the begin of the collective, on the host up to its launch.


class Before(Struct, frozen=True, kw_only=True):
    """The window before a late rank's collective: ns of each activity, which may overlap."""

    window_ns: int
    compute_ns: int
    collectives_ns: int
    loader_ns: int
    ops_ns: int
    """Host ops on the launching thread, except data loading and collectives."""
    more: Mapping[str, int]
    """Activity -> ns more than the median of the others since the previous collective; empty for the first collective.
    """
    frame: Frame | None
    """The user's innermost Python function that covers most of it, if stacks were recorded."""

    @property
    def what(self) -> str:
        """Activity in which it exceeded the others, else the activity that fills most of the window."""
        need = MOST * self.window_ns
        most = max(self.more, key=lambda kind: self.more[kind], default=NOTHING)
        if self.more.get(most, 0) >= need:
            return most
        for covers, name in (
            (self.collectives_ns, EARLIER),
            (self.loader_ns, LOADER),
            (self.compute_ns, COMPUTE),
            (self.ops_ns, HOST),
        ):
            if covers >= need:
                return name
        return NOTHING


class Stretch(Struct, frozen=True, kw_only=True):
    """The time of a rank from one collective, or from the begin of a step, to the next collective."""

    trace: Trace
    device_ns: int
    """Begin on the device."""
    host_ns: int
    """Begin on the host."""
    until: Local

    @property
    def host_window(self) -> tuple[int, int]:
        """Interval of the stretch on the host."""
        launched = launch_ns(self.trace, self.until)
        begins = self.device_ns if self.until.kernel == MISSING else self.host_ns
        return min(begins, launched), launched


def way(trace: Trace, since: Local | None, until: Local) -> Stretch | None:
    """Return the stretch from the previous collective to ``until``.

    For the first one from the begin of its step, if known.
    """
    if since is not None:
        return Stretch(trace=trace, device_ns=since.end_ns, host_ns=launch_ns(trace, since), until=until)
    starts = trace.rows["steps"]["start_ns"]
    before_it = starts[starts <= launch_ns(trace, until)]
    if not len(before_it):
        return None
    return Stretch(trace=trace, device_ns=int(before_it.max()), host_ns=int(before_it.max()), until=until)


def before(trace: Trace, late: Local, lateness_ns: int, own: Stretch | None, others: Sequence[Stretch]) -> Before:
    """Return the activity of the rank of ``trace`` before it came ``lateness_ns`` late to ``late``.

    ``own``: its stretch since the previous collective; ``others``: the stretches of the ranks that waited for it.
    """
    device_window = (late.start_ns - lateness_ns, late.start_ns)
    launch = launch_ns(trace, late)
    host_window = (launch - lateness_ns, launch)
    threads = _threads(trace, late)
    loader = trace.fact(_loader_spans)
    ops = trace.fact(OpsOf(threads))
    hosted = late.kernel == MISSING
    return Before(
        window_ns=lateness_ns,
        compute_ns=_inside(trace.fact(compute_intervals), device_window),
        collectives_ns=_inside(trace.fact(_collective_intervals), host_window if hosted else device_window),
        loader_ns=_inside(loader, host_window),
        ops_ns=_inside(ops, host_window),
        more=_more(own, others) if own is not None and others else {},
        frame=_frame(trace, threads, host_window),
    )


def _more(own: Stretch, others: Sequence[Stretch]) -> dict[str, int]:
    """Return, per activity, the rank's time in its stretch minus the median of the others."""
    mine, theirs = _spent(own), [_spent(other) for other in others[:: -(-len(others) // MOST_OTHERS)]]
    return {kind: ns - int(np.median([spent[kind] for spent in theirs])) for kind, ns in mine.items()}


def _spent(stretch: Stretch) -> dict[str, int]:
    """Return ns of a stretch by activity: on the device between the collectives, on the host between launches."""
    trace = stretch.trace
    device = (min(stretch.device_ns, stretch.until.start_ns), stretch.until.start_ns)
    launches = stretch.host_window
    threads = _threads(trace, stretch.until)
    loading = trace.fact(_loader_spans)
    loader = _inside(loading, launches)
    return {
        EARLIER: _inside(trace.fact(_collective_intervals), device),
        LOADER: loader,
        COMPUTE: _inside(trace.fact(compute_intervals), device),
        HOST: _inside(merge(trace.fact(OpsOf(threads)), loading), launches) - loader,
    }


def compute_intervals(trace: Trace) -> Intervals:
    """Return when a device of the trace ran a kernel other than communication."""
    kernels = trace.rows["kernels"]
    chosen = ~kernels["communication"]
    return union_of(kernels, chosen)


def _collective_intervals(trace: Trace) -> Intervals:
    rows = trace.rows["collectives"]
    return union(rows["start_ns"], rows["end_ns"])


def _loader_spans(trace: Trace) -> Intervals:
    return union_of(trace.rows["slices"], input_slices(trace))


def launch_ns(trace: Trace, late: Local) -> int:
    """Return when the host launched it; its own start if that is not recorded."""
    if late.kernel == MISSING:
        rows, row = trace.rows["slices"], late.slice
    else:
        rows, row = trace.rows["calls"], int(trace.rows["kernels"]["call"][late.kernel])
    return late.start_ns if row == MISSING else int(rows["start_ns"][row])


def _threads(trace: Trace, late: Local) -> tuple[int, ...]:
    """Return the threads whose work can make the rank late: the launching thread.

    With a worker (gloo), all other threads.
    """
    if late.kernel != MISSING:
        call = int(trace.rows["kernels"]["call"][late.kernel])
        return () if call == MISSING else (int(trace.rows["calls"]["thread"][call]),)
    return trace.fact(_no_workers)


def _no_workers(trace: Trace) -> tuple[int, ...]:
    """Return the threads without a collective."""
    hosted = trace.rows["collectives"]["slice"]
    workers = trace.rows["slices"]["thread"][hosted[hosted != MISSING]]  # collectives on the device have no span
    return tuple(np.setdiff1d(np.arange(len(trace.rows["threads"])), workers).tolist())


class OpsOf(Struct, frozen=True):
    """Times of ops on the threads, without the collectives' own: a fact of a trace."""

    threads: tuple[int, ...]

    def __call__(self, trace: Trace) -> Intervals:
        """Return the spans of ops on the threads; empty without threads."""
        slices = trace.rows["slices"]
        if not self.threads:
            return EMPTY
        own = [code for code, text in enumerate(trace.strings) if text.startswith(OWN_NAMES)]
        chosen = (slices["kind"] == int(SliceKind.OP)) & np.isin(slices["thread"], self.threads)
        chosen &= ~np.isin(slices["name"], own)
        return union_of(slices, chosen)


def _frame(trace: Trace, threads: tuple[int, ...], window: tuple[int, int]) -> Frame | None:
    """Return the user's innermost Python function that covers most of the window; None without stacks."""
    slices, functions = trace.rows["slices"], trace.fact(_user_functions)
    middle = (window[0] + window[1]) // 2  # a function that covers more than half of the window covers its middle
    candidates = []
    for thread in threads:
        rows, outer = functions.get(thread, (EMPTY_ROWS, []))
        index = int(np.searchsorted(slices["start_ns"][rows], middle, side="right")) - 1
        while index != MISSING:
            row = int(rows[index])
            start, end = int(slices["start_ns"][row]), int(slices["end_ns"][row])
            if min(end, window[1]) - max(start, window[0]) >= MOST * (window[1] - window[0]):
                candidates.append((end - start, row))
            index = outer[index]
    return parse_frame(trace.text(int(slices["name"][min(candidates)[1]]))) if candidates else None


def _user_functions(trace: Trace) -> dict[int, tuple[Int64, list[int]]]:
    """Return, per thread, rows of ``slices`` of the user's functions by start, and the index of each one's parent.

    For a set of ranks only these spans are kept, without the spans around them.
    """
    slices = trace.rows["slices"]
    python = np.flatnonzero(slices["kind"] == SliceKind.PYTHON)
    names, inverse = np.unique(slices["name"][python], return_inverse=True)
    frames = [parse_frame(trace.text(int(code))) for code in names]
    mine = np.array([frame is not None and frame.owner is Owner.USER for frame in frames], bool)
    chosen = python[mine[inverse]] if len(python) else python
    result = {}
    for thread in np.unique(slices["thread"][chosen]).tolist():
        rows = chosen[slices["thread"][chosen] == thread]  # in order of start, the longest first
        outer: list[int] = []
        around: list[tuple[int, int]] = []
        for index, (start, end) in enumerate(
            zip(slices["start_ns"][rows].tolist(), slices["end_ns"][rows].tolist(), strict=True)
        ):
            while around and around[-1][1] <= start:
                around.pop()
            outer.append(around[-1][0] if around else MISSING)
            around.append((index, end))
        result[thread] = (rows.astype(np.int64), outer)
    return result


def _inside(intervals: Intervals, window: tuple[int, int]) -> int:
    return int(covered(intervals, [window[0]], [window[1]])[0])


class Late(Struct, frozen=True, kw_only=True):
    """One late arrival."""

    collective: Matched
    rank: int
    lateness_ns: int
    """Lateness relative to the next-to-last rank, ns."""
    waited_ns: int
    """Sum of the others' waits, ns."""
    before: Before
    window: tuple[int, int] | None = None
    """The rank's host window before its arrival, on its own clock; None if its begin is unknown."""
    first: tuple[int, tuple[int, int]] | None = None
    """Number and host window of the rank that arrived first."""

    @property
    def side(self) -> Local:
        """The rank's side of the collective."""
        return self.collective.sides[self.rank]


class Straggling(Struct, frozen=True, kw_only=True):
    """All late arrivals of one rank."""

    rank: int
    arrivals: tuple[Late, ...]
    """Latest first."""
    cost_ns: int
    """Upper bound of the saving from arriving in time: the lateness, at most the longest idle time of another rank.

    Waiting while a device computed is excluded. For collectives on the host, overlapped work is unknown.
    """


class Lateness(Struct, frozen=True, kw_only=True):
    """The stragglers of a job, the costliest first."""

    stragglers: tuple[Straggling, ...]
    collectives: int
    """Number of matched collectives of all ranks."""
    whole_ns: int
    """Reference time of costs: the longest rank's steps, or its span."""

    @property
    def cost_ns(self) -> int:
        """Sum over all stragglers."""
        return sum(straggler.cost_ns for straggler in self.stragglers)


def lateness_of(ranks: RankSet) -> Lateness:
    """Return the late arrivals at the matched collectives of a job."""
    traces = ranks.job.traces
    by_rank: dict[int, list[Late]] = defaultdict(list)
    previous: dict[int, Local] = {}
    for collective in ranks.matching.matched:
        ways = {
            rank: stretch
            for rank, side in collective.sides.items()
            if (stretch := way(traces[rank], previous.get(rank), side)) is not None
        }
        previous.update(collective.sides)
        waits = sorted((collective.wait_ns(rank), rank) for rank in collective.sides)
        late, other = waits[1]
        rank = waits[0][1]
        least = ranks.clocks.uncertainty_ns.get(rank, 0) + ranks.clocks.uncertainty_ns.get(other, 0)
        side = collective.sides[rank]
        if side.kernel == MISSING:
            least = max(least, SLICE_NS)
        if late <= least or not _inside(_steps(traces[rank]), (side.start_ns, side.end_ns)):
            continue
        first = waits[-1][1]
        windows = {number: stretch.host_window for number, stretch in ways.items()}
        own = ways.pop(rank, None)
        did = before(traces[rank], side, late, own, tuple(ways.values()))
        waited = sum(wait for wait, _ in waits)
        by_rank[rank].append(
            Late(
                collective=collective,
                rank=rank,
                lateness_ns=late,
                waited_ns=waited,
                before=did,
                window=windows.get(rank),
                first=(first, windows[first]) if first in windows else None,
            )
        )
    stragglers = [_straggling(rank, arrivals, ranks) for rank, arrivals in by_rank.items()]
    return Lateness(
        stragglers=tuple(sorted(stragglers, key=lambda straggling: (-straggling.cost_ns, straggling.rank))),
        collectives=len(ranks.matching.matched),
        whole_ns=ranks.job.whole_ns,
    )


def _steps(trace: Trace) -> Intervals:
    """Return the steps; the whole capture without steps."""
    windows = trace.fact(account_windows)
    return union(windows.starts, windows.ends)


def _straggling(rank: int, found: list[Late], ranks: RankSet) -> Straggling:
    exposed = _exposed(found, ranks)
    cost = min(sum(late.lateness_ns for late in found), max(exposed.values(), default=0))
    arrivals = tuple(sorted(found, key=lambda late: -late.lateness_ns))
    return Straggling(rank=rank, arrivals=arrivals, cost_ns=cost)


def explained_ns(late: Lateness) -> int:
    """Return the time that the longest-waiting rank waited at all late arrivals, each moment counted once."""
    waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for arrival in (arrival for straggling in late.stragglers for arrival in straggling.arrivals):
        for rank, side in arrival.collective.sides.items():
            waits[rank].append((side.start_ns, side.start_ns + arrival.collective.wait_ns(rank)))
    totals = (union([start for start, _ in spans], [end for _, end in spans]).total() for spans in waits.values())
    return max(totals, default=0)


def _exposed(arrivals: list[Late], ranks: RankSet) -> Mapping[int, int]:
    """Return, per other rank, ns of its steps in which it waited while its device computed nothing."""
    waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
    on_device = True
    for late in arrivals:
        for rank, side in late.collective.sides.items():
            if rank != late.rank:
                on_device &= side.kernel != MISSING
                waits[rank].append((side.start_ns, side.start_ns + late.collective.wait_ns(rank)))
    traces = ranks.job.traces
    exposed = {}
    for rank, spans in waits.items():
        waited: Intervals = union([start for start, _ in spans], [end for _, end in spans])
        waiting = intersection(waited, _steps(traces[rank]))
        computing = traces[rank].fact(compute_intervals)
        exposed[rank] = difference_total(waiting, computing) if on_device else waiting.total()
    return exposed


# Parts of the exposed time of collectives: waiting for a late member, the transfer itself, and unclear time.
# Members are ranks, or the devices of one recording. A member that arrived before the last one waits from its start for
# its duration minus the shortest; the rest is the transfer. Both count only while the device computed nothing, each
# moment once, so the parts sum to ``communication_in_steps`` exactly.
# A wait that is shorter than the difference between the two members' ends cannot be separated from the transfer. If
# members of a group are missing, the shortest duration may include waiting for one of them.


class Wait(Struct, frozen=True, kw_only=True):
    """Activity of one member in one collective."""

    group: Group
    until_ns: int
    """Arrival of the last member, on this member's clock."""
    certain: bool
    """Whether the wait exceeds the difference between the two members' ends."""
    late: int | None
    """Member that arrived last; None if it may have been the one before it."""
    whole: bool
    """Whether all members were recorded, so that time other than waiting is the transfer."""


class Share(Struct, kw_only=True):
    """Exposed time of a member in the collectives of one group; ``exposed_ns`` is the sum of the parts."""

    member: int
    group: Group | None
    """None for unmatched collectives."""
    collectives: int = 0
    waiting_ns: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Member that was waited for -> ns; the member itself if it is a process with several devices."""
    together_ns: int = 0
    """Waiting for several members that arrived last together, within the clocks' uncertainty."""
    core_ns: int = 0
    """The transfer itself."""
    unclear_ns: int = 0
    """Waiting or transfer: below the clocks' uncertainty, or with missing members."""
    unmatched_ns: int = 0
    """Time in collectives that no other member has."""

    @property
    def late_ns(self) -> int:
        """Waiting for other, known members."""
        return sum(waited for late, waited in self.waiting_ns.items() if late != self.member)

    @property
    def own_ns(self) -> int:
        """Waiting for another device of the same process, which arrived last."""
        return self.waiting_ns.get(self.member, 0)

    @property
    def exposed_ns(self) -> int:
        """Sum of all parts."""
        return self.late_ns + self.own_ns + self.together_ns + self.core_ns + self.unclear_ns + self.unmatched_ns

    def add(self, other: Share) -> None:
        """Add the times of another share."""
        self.collectives += other.collectives
        for late, waited in other.waiting_ns.items():
            self.waiting_ns[late] += waited
        self.together_ns += other.together_ns
        self.core_ns += other.core_ns
        self.unclear_ns += other.unclear_ns
        self.unmatched_ns += other.unmatched_ns


def waits_of(
    matched: Iterable[Matched], clocks: Clocks, *, all_here: bool, rank_at: Mapping[int, int] | None = None
) -> dict[int, dict[int, Wait]]:
    """Return rank -> row of ``kernels`` of its trace -> wait.

    ``all_here``: whether all members of the job were recorded.

    ``rank_at``: rank of each member, if members are devices of several processes: a device waits for the process whose
    device arrived last. If that is its own process, no other process was late, and ``straggler`` does not count it.
    """
    result: dict[int, dict[int, Wait]] = defaultdict(dict)
    for collective in matched:
        ranks = {member: member if rank_at is None else rank_at[member] for member in collective.sides}
        doubt = {member: clocks.uncertainty_ns.get(member, 0) for member in collective.sides}
        last = min(sorted(collective.sides), key=collective.wait_ns)
        others = [member for member in sorted(collective.sides) if ranks[member] != ranks[last]]
        nearest = min(others, key=collective.wait_ns, default=None)
        sure = nearest is None or collective.wait_ns(nearest) > doubt[last] + doubt[nearest]
        whole = collective.complete and (collective.named or all_here)
        for member, side in collective.sides.items():
            if side.kernel == MISSING:
                continue
            waited = collective.wait_ns(member)
            result[ranks[member]][side.kernel] = Wait(
                group=collective.group,
                until_ns=side.start_ns + waited,
                certain=waited > doubt[member] + doubt[last],
                late=ranks[last] if sure else None,
                whole=whole,
            )
    return result


def shares_of(
    trace: Trace, member: int, device: int, rows: Sequence[int], waits: Mapping[int, Wait]
) -> tuple[Share, ...]:
    """Return the exposed time of ``rows`` of ``kernels`` (communication on ``device``) by group, most time first."""
    exposed = trace.fact(communication_in_steps)
    until = trace.rows["kernels"]["start_ns"].astype(np.int64)
    for kernel, item in waits.items():
        until[kernel] = item.until_ns
    computing = _computing(trace, device)
    waited = None if computing is None else exposed_until(trace, until, device, computing)
    result: dict[Group | None, Share] = {}
    for row in rows:
        wait = waits.get(row) if waited is not None else None
        group = None if wait is None else wait.group
        share = result.setdefault(group, Share(member=member, group=group))
        share.collectives += 1
        if wait is None or waited is None:
            share.unmatched_ns += int(exposed[row])
            continue
        before = int(waited[row])
        if not wait.certain:
            share.unclear_ns += before
        elif wait.late is None:
            share.together_ns += before
        else:
            share.waiting_ns[wait.late] += before
        if wait.whole:
            share.core_ns += int(exposed[row]) - before
        else:
            share.unclear_ns += int(exposed[row]) - before
    return tuple(sorted(result.values(), key=lambda share: -share.exposed_ns))


def summed(shares: Sequence[Share]) -> Share:
    """Sum the shares of all groups of a member; at least one share is required."""
    total = Share(member=shares[0].member, group=None)
    for share in shares:
        total.add(share)
    return total


def _computing(trace: Trace, device: int) -> Intervals | None:
    """Return when the device computed; None if the rows that distinguish the devices of a rank were not kept."""
    if len(trace.rows["devices"]) == 1:
        return trace.fact(compute_intervals)
    if not len(trace.rows["hlo_ops"]):
        return None
    kernels = trace.rows["kernels"]
    chosen = (kernels["device"] == device) & ~kernels["communication"]
    return union_of(kernels, chosen)
