"""Elementwise ops run one by one, each through memory, instead of in one fused kernel.

Example:
    Before::

        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    After::

        y = F.rms_norm(x, weight.shape, weight, eps)

Why it costs:
    An elementwise op does little arithmetic on each element it moves. Run one by one, every op of `silu(x + b) * y`
    reads its inputs from memory and writes its result back for the next op to read. A fused kernel reads the inputs
    once, writes the result once, and keeps intermediate values in registers. On a GPU each op is also a launch.

How it is found:
    From the op graph of a run, exactly: groups of pointwise ops over one iteration domain, with reductions over it and
    small operands that broadcast into it, joined by the storages they pass on. Views are transparent, in-place writes
    keep their order, and no path leaves a group and comes back, or crosses a host read or a phase. Bytes one by one:
    distinct inputs and outputs of each op. Bytes fused: distinct inputs from outside, and outputs that are used
    outside, including the backward pass. The saved time is modelled: an op takes a fixed cost (the shortest op of the
    trace, at most 2 us) and a time in proportion to its bytes. The saving has the fixed cost of every op less, and the
    time of the bytes saved. It is at most the time of these bytes and launches on the device: at the bandwidth that
    strided kernels reach (2 GB/s on a CPU) and 5 us per launch (10 us per op on a CPU). Time that other device work
    hides is not counted. Norms that are one kernel already (`layer_norm`, `group_norm`) are not reported.

    From a bare trace with shapes: elementwise kernels that follow each other on one stream, where the next reads a
    tensor of the shape and dtype that the previous one made. Compared with exact graphs this had precision 0.93 and
    recall 0.97 in the forward pass, and precision 0.24 and 0.67 in backward and optimizer. Only forward chains are
    reported, labelled as modelled.

    From the log of a compiled PyTorch program's run: kernels with a common value that inductor's scheduler considered
    and did not fuse, with its reason. A refusal counts if the second kernel reads what the first writes. Left out are
    pairs that a later round fused, library calls and templates without epilogue, and pairs with a third kernel between
    them (which needs the value in memory; its own refusal is judged separately). Bytes: the read, and the write if
    nothing else needs the value. On a GPU the time is modelled, `min(bytes / bandwidth, time of both kernels)`. If the
    log does not name the kernels (backward graphs of torch 2.13), it is the first term times the runs of the graph;
    without a recording, the share of the bytes that the graph's kernels move. On a CPU only values larger than its
    caches (32 MiB) count. This part covers ops inside compiled graphs; ops outside of them need another source.

    From an XLA program compiled for a GPU: a value of b bytes that one kernel writes for m others, each elementwise or
    a reduction, costs `b * (m + 1)` bytes that one kernel would not move, or `b * m` if something else needs it too,
    times the loops' trip counts. A value that fits in an H100's level-2 cache and is read by the very next kernel
    seldom reaches memory: it is listed, but its bytes are not counted. A matrix product with only elementwise readers
    is an unfused epilogue. A dump of XLA's fusion decisions (`--xla_dump_hlo_pass_re=priority-fusion`) in the same
    folder adds XLA's reason to each pair. Time is modelled: the bytes at the bandwidth of the memory, less the
    producer's arithmetic for every reader but one, `bytes / bandwidth - k (m - 1) flops / peak`; without a positive
    result XLA was right not to fuse. With a recording it is at most the time of these kernels while nothing else ran,
    over the trace. A program alone gives the time of one run, on its recorded device, `--device`, or an H100 (assumed).
    Savings below 1% of the time are not reported. The saved launch, 2 us outside a CUDA graph (an assumption), is shown
    but not counted, because XLA records its kernels into graphs by default. Programs for a CPU keep such values in its
    caches and programs for a TPU in its vector memory; they are not judged.

    In a planned PyTorch program (`perfscope compile`): chains among the ops that run eagerly, with modelled time, and
    pairs of planned kernels with a common value that inductor refused to fuse, with its reason. The saving is the read,
    and the write if nothing else needs the value.

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

from perfscope.analyzers.examined import op_records
from perfscope.analyzers.ops.achieved import longest_ns
from perfscope.analyzers.ops.fusion import FORWARD_PRECISION, FORWARD_RECALL, KernelChain, chain_text, forward_chains
from perfscope.analyzers.spans import removed_inside, time_of, worst_spans
from perfscope.analyzers.time import call_site, timed_cost, whole_ns
from perfscope.analyzers.torch_compile import log_has_refusals
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
