"""Elementwise ops run one by one, each through memory, where one fused kernel would do.

Why it costs:
    An elementwise op does little arithmetic on each element it moves. Run one by one, every op of
    `silu(x + b) * y` reads its inputs from memory and writes its result back for the next op to read.
    A fused kernel reads the inputs once and writes the result once; what lies between stays in
    registers. On a GPU each op is also a launch.

How it is found:
    From the op graph of a run, exactly: groups of pointwise ops over one iteration domain, with
    reductions over it and small operands that broadcast into it, joined by the storages they pass on.
    Views are transparent, in-place writes keep their order, and a group never has a path that leaves it
    and comes back, nor crosses a host read or a phase. Bytes one by one: distinct inputs and outputs of
    each op; fused: distinct inputs from outside, and what is used outside, by the backward too. The
    time saved is modelled: an op takes a fixed cost (the shortest op of the trace, 2 us at most) and the
    rest for its bytes; the fixed cost goes once for every op fewer, and of the rest the part of the bytes
    saved. It is never more than the bytes and launches saved can take on the device: the bytes at the bandwidth that
    strided kernels reach (2 GB/s on a CPU), 5 us per launch (10 us per op on a CPU). Time that other device work
    hides is not counted. Norms that are one kernel already (`layer_norm`, `group_norm`) are left as they are.

    From a bare trace with shapes: elementwise kernels that follow each other on one stream, where the
    next reads a tensor of the shape and dtype that the last one made. Against exact graphs this had
    precision 0.93 and recall 0.97 in the forward pass, 0.24 and 0.67 precision in backward and
    optimizer; only forward chains are reported, labelled as modelled.

    From the log of a run of a compiled PyTorch program: kernels that inductor's scheduler would have fused for a value
    between them and did not, with its reason. A refusal counts where the second kernel reads what the first writes;
    left out are those that a later round fused, library calls and templates without epilogue, and pairs that a third
    kernel stands between (the value must be written for it; what keeps that one apart is judged itself). Bytes: the
    read, and the write where nothing else needs the value. On a GPU the time is modelled,
    `min(bytes / bandwidth, time of both kernels)`, or the first alone times the runs of the graph where the log does
    not name the kernels (torch 2.13 of backward graphs); without a recording the share of the bytes that the graph's
    kernels move.
    On a CPU only values beyond its caches (32 MiB) count. Ops inside compiled graphs are left to this; ops outside of
    them need one of the other sources.

    From an XLA program compiled for a GPU: a value of b bytes that one kernel writes for m others, each
    elementwise or a reduction, costs `b * (m + 1)` bytes that one kernel would not move, or `b * m` where
    something else needs it too, times the loops' trip counts. A value that fits in an H100's level-2 cache
    and is read by the very next kernel seldom reaches memory: it is said, and not counted as bytes. A matrix
    product whose only readers are elementwise is an epilogue that was not fused. Where a dump of XLA's
    fusion decisions (`--xla_dump_hlo_pass_re=priority-fusion`) lies beside the program, XLA's own reason
    stands with each. Time is modelled: those bytes at the bandwidth of the memory, less the producer's arithmetic for
    every reader but one, `bytes / bandwidth - k (m - 1) flops / peak`; where that leaves nothing, it is rightly not
    fused. With a recording no more than its kernels took while nothing else ran, over the trace; a program alone
    gives the time of one run, on the device it was recorded with, `--device`, or an H100 (assumed). Under 1% of the
    time nothing is said. A launch fewer, 2 us outside a CUDA graph (an assumption), stands beside it and is not
    counted: XLA records its kernels into graphs by default. Programs for a CPU keep such values in its caches and
    programs for a TPU in its vector memory; they are not judged.

    In a planned PyTorch program (`perfscope compile`): chains among the ops that run eagerly, with modelled time, and
    pairs of planned kernels with a value between them that inductor refused to fuse, with its reason; the read is
    saved, and the write where nothing else needs the value.

Fix:
    Compile the function, or the module around it::

        @torch.compile
        def gated(x_BTF, gate_BTF, bias_F):
            return torch.nn.functional.silu(gate_BTF + bias_F) * x_BTF

    or call an op that is fused already: `F.rms_norm`, `F.layer_norm`, `F.scaled_dot_product_attention`,
    `torch.addcmul`.

    In JAX the compiler fuses already; what is left are borders it does not cross. Scores of attention:
    `jax.nn.dot_product_attention(q, k, v, implementation="cudnn")`. Others: a Pallas kernel, or an order of
    ops that puts no scatter, sort or transposition between the elementwise ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from perfscope.analyzers.ops.achieved import longest_ns
from perfscope.analyzers.ops.fusion import FORWARD_PRECISION, FORWARD_RECALL, KernelChain, chain_text, forward_chains
from perfscope.analyzers.time import call_site, op_records, removed_inside, time_of, timed_cost, whole_ns, worst_spans
from perfscope.analyzers.torch_compile.inductor_fusion import log_has_refusals
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Scope, Where, fit_title
from perfscope.model.trace import Trace

MIN_SHARE = 0.02
"""Smallest share of the step's time, or of its bytes if no time is known. The saving is modelled: even half of it would
exceed the 1 % by which a step varies.
"""


def examined(trace: Trace) -> Scope:
    """Count the kernels and fusion decisions of a compile log, else ops."""
    log = trace.compile_log
    if log is not None and log_has_refusals(log) and not trace.torch_plans:
        logged = len(log.kernels) + len(log.refusals)
        return Scope(logged, "kernels and fusion decisions in the compile log") if logged else op_records(trace)
    return op_records(trace)


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per function whose chains cost ``MIN_SHARE`` of a step, or that inductor did not fuse."""
    compiled = log_has_refusals(trace.compile_log)
    if compiled:
        from perfscope.analyzers.ops.rules.unfused_ops.inductor import inductor_findings

        yield from inductor_findings(trace)
    if trace.op_graph is not None:
        from perfscope.analyzers.ops.rules.unfused_ops.graph import graph_findings

        yield from graph_findings(trace, least=MIN_SHARE)
    elif {"device_work", "op_links", "shapes"} <= trace.recorded:
        yield from _from_chains(trace)
    elif "hlo" in trace.recorded:
        from perfscope.analyzers.ops.rules.unfused_ops.program import program_findings

        yield from program_findings(trace)
    elif not compiled:
        raise AbstainError(
            "needs the op graph of a run (`perfscope run`), device work linked to ops with shapes, a compiled XLA "
            "program, or inductor's fusion decisions (`perfscope run` of a compiled program)",
            ("op_graph",),
        )


def check_plan(trace: Trace) -> Iterable[Finding]:
    """Yield chains that run op by op, and kernels that inductor would not fuse."""
    from perfscope.analyzers.ops.rules.unfused_ops.graph import graph_findings
    from perfscope.analyzers.ops.rules.unfused_ops.inductor import plan_findings

    yield from plan_findings(trace)
    yield from graph_findings(trace, least=MIN_SHARE)


def _from_chains(trace: Trace) -> Iterator[Finding]:
    places: dict[tuple[Where, str], list[KernelChain]] = {}
    for chain in trace.fact(forward_chains):
        site = call_site(trace, chain.ops[0])
        module = site.module.rstrip("0123456789").rstrip("_") if site.module else None
        where = Where(op=None, module=module, file=site.file, line=site.line)
        places.setdefault((where, chain_text(chain.names)), []).append(chain)
    whole, work = whole_ns(trace), trace.rows["kernels"]
    for (where, text), chains in places.items():
        priced = sorted(((_chain_ns(trace, chain), chain) for chain in chains), key=lambda pair: -pair[0])
        cost = sum(saved for saved, _ in priced)
        if cost < MIN_SHARE * whole or not cost:
            continue
        kernels = sum(len(chain.kernels) for chain in chains)
        moved = sum(chain.eager_bytes - chain.fused_bytes for chain in chains)
        yield Finding(
            subject=text,
            title=fit_title(f"{text} is not fused: {len(chains):,} times", text),
            detail=f"It looks like one expression: {len(chains):,} chains of {kernels:,} kernels, guessed from shapes "
            f"and order; {100 * FORWARD_PRECISION:.0f}% of such links were real.",
            **timed_cost(trace, cost, whole, "modelled"),
            cost_bytes=moved,
            where=where,
            evidence=tuple(_rows(priced))[:MOST_ROWS],
            spans=worst_spans(
                [work["start_ns"][chain.kernels[0]] for _, chain in priced],
                [work["end_ns"][chain.kernels[-1]] for _, chain in priced],
                [saved for saved, _ in priced],
            ),
            removes=removed_inside(trace, np.array([op for _, chain in priced for op in chain.ops], np.int64)),
            advice="Compile the function around it with @torch.compile, or the model. `perfscope run` records the op "
            "graph, which has the exact ops that can fuse.",
        )


def _rows(priced: Sequence[tuple[int, KernelChain]]) -> Iterator[dict[str, Cell]]:
    """Yield equal chains (same number of kernels and bytes) as one row with their number and sums."""
    alike: dict[tuple[tuple[str, ...], int, int, int], list[tuple[int, KernelChain]]] = {}
    for saved, chain in priced:
        key = (chain.names, len(chain.kernels), chain.eager_bytes, chain.fused_bytes)
        alike.setdefault(key, []).append((saved, chain))
    sums = {key: sum(saved for saved, _ in members) for key, members in alike.items()}
    for key in sorted(alike, key=lambda key: -sums[key]):
        names, kernels, eager_bytes, fused_bytes = key
        times = len(alike[key])
        yield {
            "chain": " -> ".join(names),
            "times": times,
            "kernels": times * kernels,
            "kernel_time_ns": sum(chain.duration_ns for _, chain in alike[key]),
            "eager_bytes": times * eager_bytes,
            "fused_bytes": times * fused_bytes,
            "saved_ns": sums[key],
            "precision": FORWARD_PRECISION,
            "recall": FORWARD_RECALL,
        }


def _chain_ns(trace: Trace, chain: KernelChain) -> int:
    """Return the modelled saving of exposed time."""
    exposed = time_of(trace, "kernels", np.array(chain.kernels)).exposed_ns
    if not chain.duration_ns:
        return 0
    bound = longest_ns(trace, moved=chain.eager_bytes - chain.fused_bytes, launches=len(chain.kernels) - 1)
    return min(chain.saved_ns, round(exposed * chain.saved_ns / chain.duration_ns), bound)
