"""Known deviations of the rules on the labelled cases: other correct findings, and reasons of misses and false alarms.

A row belongs to all cases whose title (``framework mode: name``) its pattern matches. Every row is printed on
docs/accuracy.md; a miss or a false alarm without a row fails the slow tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Of = Literal["defect", "twin", "both"]
Kind = Literal["missed", "line", "alarm", "first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A rule flags a program besides its label, and is right: it counts neither way."""

    rule: str
    cases: str
    of: Of = "defect"
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Why a rule misses a defect, names another line, flags where nothing is (``alarm``), or is above the labelled
    finding in the report (``first``)."""

    rule: str
    cases: str
    kind: Kind
    why: str


RIGHT = (
    Right(
        rule="eager_fallback",
        cases="torch compiled: (rate as a Python float|ever new lengths)",
        why="too many compilations leave it to eager mode",
    ),
    Right(rule="host_bound", cases="4 gloo processes", of="both", why="every rank sleeps in every step, by design"),
    Right(
        rule="host_sync",
        cases="4 gloo processes: most tokens",
        of="both",
        why="it reads how many rows it sends and receives: what exact exchanges cost",
    ),
    Right(
        rule="unexplained_idle",
        cases="4 gloo processes: most tokens",
        of="both",
        why="four processes that share two cores wait for each other in ten exchanges per step",
    ),
    Right(
        rule="unexplained_idle",
        cases="4 gloo processes: weights in four parts",
        of="both",
        why="four processes that share two cores wait for each other in the gathers and reductions of a step",
    ),
    Right(
        rule="straggler",
        cases="4 gloo processes: context",
        why="the rank with the last piece comes late: it computes more attention",
    ),
    Right(
        rule="host_bound",
        cases="8 devices: (straggler|input)",
        of="both",
        why="the loop sleeps in every step, by design",
    ),
    Right(
        rule="host_sync",
        cases="8 devices: (straggler|input)",
        of="both",
        why="the loop calls `block_until_ready` in every step, by design",
    ),
    Right(
        rule="data_movement",
        cases="torch eager: generation, item",
        why="it joins the tokens so far with each new one by `torch.cat`",
    ),
    Right(rule="launch_bound", cases="jax jit: generation, item", of="both", why="each token is a separate small call"),
    Right(
        rule="data_movement",
        cases="torch eager: (expert loop|demo)",
        why="each expert picks its rows by an index, whose gradient fills a tensor of all rows",
    ),
    Right(
        rule="host_sync",
        cases="torch compiled: index by a mask",
        why="the boolean index that the compiler does not support reads its size on the host",
    ),
    Right(rule="host_sync", cases="jax jit: host: save", why="saving reads the state from the device in every step"),
    Right(
        rule="unfused_ops",
        cases="torch H100: (attention|moe)",
        of="both",
        why="the loss casts the logits to float32 and takes their log-softmax: two ops in eager mode, in all workloads",
    ),
    Right(
        rule="input_stall",
        cases="torch eager: a whole (video|audio) decoded",
        of="twin",
        why="the clip alone is still decoded in the training process",
    ),
    Right(
        rule="unexplained_idle",
        cases="4 gloo processes: context",
        of="both",
        why="four processes share two cores, and each part of the attention waits for the other ranks",
    ),
    Right(
        rule="straggler",
        cases="4 gloo processes: context",
        of="twin",
        why="four processes share two cores, so that one of them is late by chance",
    ),
    Right(rule="unfused_ops", cases="torch H100: ssm-scan", why="the scan's own two ops per step of time, at its line"),
    Right(
        rule="unfused_ops",
        cases="jax H100: moe-ragged",
        why="XLA leaves the elementwise ops between the products alone",
    ),
    Right(
        rule="blocking_collective",
        cases="(H100|v5e): transformer-sharding",
        of="both",
        why="all-reduces that nothing overlaps: in the twin on a v5e too, where they are synchronous ops",
    ),
    Right(
        rule="unfused_attention",
        cases="jax jit: (recomputation|cache in slices)",
        of="both",
        why="its attention is written out in both",
    ),
    Right(
        rule="excess_remat",
        cases="jax jit: recomputation twice",
        of="twin",
        why="the twin recomputes once, for nothing",
    ),
    Right(
        rule="data_movement",
        cases="torch eager: products of quantised",
        of="twin",
        why="on the CPU the kernels run as their plain version, which converts inside of the op",
    ),
    Right(
        rule="unfused_ops", cases="torch eager: products of quantised", why="the same lines: ops that unpack one by one"
    ),
    Right(
        rule="peak_owner",
        cases="torch eager: products of quantised",
        why="the same lines: they write in memory what the kernel keeps on chip",
    ),
    Right(
        rule="peak_owner",
        cases="torch eager: (naive attention|hybrid, naive|recomputation|metric that keeps)",
        of="both",
        why="it names who holds the peak: the scores, or the logits with their copies in the loss",
    ),
)

LIMITS = (
    Limit(
        rule="host_bound",
        cases="4 gloo processes: .*(straggler|input)|8 devices: straggler",
        kind="first",
        why="every rank sleeps in every step, by design, and that costs more than waiting for the late one",
    ),
    Limit(
        rule="input_stall",
        cases="decoded for each clip",
        kind="line",
        why="it names the loop that waits, and the labelled line in its title",
    ),
    Limit(
        rule="data_movement",
        cases="torch eager: (expert loop|generation, item)",
        kind="first",
        why="on a CPU a wait of the host has no time; these copies have one",
    ),
    Limit(
        rule="straggler",
        cases="4 gloo processes: most tokens",
        kind="alarm",
        why="four processes share two cores: a rank that waits for one comes late once",
    ),
    Limit(
        rule="host_sync",
        cases="torch eager: demo",
        kind="line",
        why="a program with torch.compile has no op graph: the function is named at its first line",
    ),
    Limit(
        rule="excess_remat",
        cases="jax",
        kind="line",
        why="it names the line that runs again, the costliest of them, not the call of the checkpoint around it",
    ),
    Limit(
        rule="full_precision_matmul",
        cases="jax (H100|v5e)",
        kind="line",
        why="the line is right in the source that was compiled; lines before it have gone since",
    ),
    Limit(
        rule="dense_expert_compute",
        cases="jax H100: moe-einsum",
        kind="line",
        why="it names the product that makes the second one's operand, between the two labelled lines",
    ),
    Limit(rule="dense_expert_compute", cases="jax v5e: moe-ragged", kind="line", why="Mosaic's kernels carry no line"),
    Limit(
        rule="unfused_optimizer",
        cases="optimizer in a loop|torch eager: demo",
        kind="line",
        why="it names `optimizer.step()`, where the kernels are launched; the constructor's arguments are not recorded",
    ),
    Limit(
        rule="unfused_optimizer",
        cases="jax jit: optimizer outside of jit",
        kind="missed",
        why="it recognises an optimizer by `torch.optim`; JAX has no such mark",
    ),
    Limit(
        rule="memory_leak",
        cases="",
        kind="line",
        why="it names the line that made what stays, not the one that keeps it",
    ),
    Limit(
        rule="donation_missed",
        cases="",
        kind="line",
        why="it names the function that is compiled, not the call of jax.jit",
    ),
    Limit(
        rule="dynamic_shape_churn",
        cases="torch compiled: ever new lengths",
        kind="line",
        why="it names the frame that is compiled again, not the call of torch.compile",
    ),
    Limit(
        rule="straggler",
        cases="4 gloo processes",
        kind="line",
        why="at level `light` no Python stacks are recorded; the evidence names the rank, and its late host",
    ),
    Limit(
        rule="straggler",
        cases="8 devices: straggler",
        kind="line",
        why="it names the collective at which the others wait, not the work that was late",
    ),
    Limit(
        rule="input_stall",
        cases="processes|devices",
        kind="line",
        why="the samples are made in time that no Python stack was recorded of",
    ),
    Limit(
        rule="straggler",
        cases="8 devices: straggler",
        kind="missed",
        why="eight virtual devices on fewer cores take turns, which looks like waiting: the rule abstains there",
    ),
    Limit(
        rule="straggler",
        cases="8 devices",
        kind="alarm",
        why="eight virtual devices share two cores: they do wait for each other, and the program is not to blame",
    ),
    Limit(
        rule="input_stall",
        cases="torch eager: samples made",
        kind="missed",
        why="a busy machine makes the model's own step so long that the samples' time falls below the threshold",
    ),
    Limit(
        rule="host_bound",
        cases="jax jit: (host|pictures, augment)",
        kind="missed",
        why="on the CPU the program computes during the host's work and is counted first; the rest is too little",
    ),
    Limit(
        rule="host_bound",
        cases="host: thread",
        kind="line",
        why="of the thread's loop of two lines it names the other one",
    ),
    Limit(
        rule="host_bound",
        cases="host",
        kind="line",
        why="the time is given to a frame around the labelled line: samples are few where a step is short",
    ),
    Limit(
        rule="host_bound",
        cases="torch eager: host: thread",
        kind="missed",
        why="the ops themselves take longer where the lock is held: the time is in them, not between them",
    ),
    Limit(
        rule="unfused_ops",
        cases="torch eager",
        kind="alarm",
        why="true of every eager backward (`gelu_backward`, then `sum`); on a busy CPU it crosses the threshold",
    ),
    Limit(
        rule="host_bound",
        cases="jax jit",
        kind="alarm",
        why="on the CPU XLA computes small programs in the thread that calls them, and the account takes that for "
        "the host's own work",
    ),
    Limit(
        rule="host_sync",
        cases="GPU trace: a sync a kernel",
        kind="missed",
        why="in 1,312 syncs the device is idle for 4.4 ms of 840 (0.5%), below the 1% of the rule; the launches after "
        "them, 10.3 ms, count as launching",
    ),
    Limit(
        rule="warmup_compile",
        cases="torch compiled: branch on a value",
        kind="alarm",
        why="the second graph's call looks its compiled code up: a tenth of a step as short as this one",
    ),
)


def right(title: str, rule: str, of: str) -> str | None:
    """Why a rule is right about a case besides its label; ``None``: it is not known to be."""
    for row in RIGHT:
        if row.rule == rule and row.of in (of, "both") and re.search(row.cases, title):
            return row.why
    return None


def limit(title: str, rule: str, kind: Kind) -> str | None:
    """The known limit of a rule that a case shows."""
    for row in LIMITS:
        if (row.rule, row.kind) == (rule, kind) and re.search(row.cases, title):
            return row.why
    return None
