"""Findings of ``compile_time`` in JAX programs: unrolled equal blocks, large constants, no cache on disk."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.hlo import PRODUCTS, HloModule, Instruction, control_runs, fused, where_of
from perfscope.analyzers.time import steps_known
from perfscope.analyzers.torch_compile.jax_compilations import CompiledFunction, compiled_functions, joined
from perfscope.model.finding import Finding, Once, Where, fit_title
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_ns

MIN_UNROLLED_NS = 5 * 10**9
"""Smallest compile time of one function: every start takes about as long for Python and the import of jax."""

MIN_LONGER_NS = 10**9
"""The same where the function compiles for longer than all timed steps take: then compiling is the wait."""

MIN_BLOCKS = 8
"""Minimum number of equal unrolled blocks: fewer are acceptable, and XLA may fuse across them."""

MIN_CONSTANT_BYTES = 16 << 20
"""Smallest size of the constants of one program. XLA folds and copies them while it compiles, and each program has a
copy.
"""

MIN_COLD_NS = 60 * 10**9
"""Smallest compile time without a cache on disk: one minute, as for torch.compile."""

MAX_ROWS = 20

_UNSAFE = re.compile(r"[^\w.-]")


class Blocks(Struct, frozen=True, kw_only=True):
    """Matrix products that occur many times in a program."""

    times: int
    """Number of blocks: how often most of the repeated lines' products occur."""
    share: float
    """Share of the program's products that are repeated this often, 0 to 1."""
    where: Where
    """Place of the first of them."""


def jax_findings(trace: Trace) -> Iterator[Finding]:
    """Yield findings about functions of the program that take long to compile."""
    modules = defaultdict(list)
    for module in trace.hlo:
        modules[module.name.partition("(")[0]].append(module)
    functions = trace.fact(compiled_functions)
    stepping = max(sum(trace.step_times_ns), trace.window_ns or 0)
    spared = 0
    for function in functions:
        name = _UNSAFE.sub("_", f"jit({function.name})").rstrip("_")
        found = [(module, blocks) for module in modules.get(name, ()) if (blocks := blocks_of(module)) is not None]
        spent = function.compilations[0].spans.total()
        if found and spent >= (MIN_LONGER_NS if 0 < stepping < spent else MIN_UNROLLED_NS):
            unrolled = _unrolled(trace, function, max((blocks for _, blocks in found), key=lambda blocks: blocks.times))
            spared += unrolled.cost_ns or 0
            yield unrolled
    for module in trace.hlo:
        constants = constants_of(module)
        if sum(one.shape.bytes for one, _ in constants) >= MIN_CONSTANT_BYTES:
            yield _constants(module, constants)
    firsts = [function.compilations[0] for function in functions]  # `recompilation` covers the other compilations
    total = joined(firsts).total()
    cached = any(event.kind.startswith("cache_") for event in trace.compile_events)
    if total - spared >= MIN_COLD_NS and not cached:
        yield _cold(trace, functions, total, spared)


def blocks_of(module: HloModule) -> Blocks | None:
    """Return the equal blocks of a program's forward pass; ``None`` with fewer than ``MIN_BLOCKS``."""
    products: Counter[tuple[object, ...]] = Counter()
    first: dict[tuple[object, ...], Instruction] = {}
    for name in control_runs(module):
        for launched in module.computations[name].instructions:
            for one in fused(module, launched):
                if one.opcode in PRODUCTS and "transpose(" not in one.op_name and one.file is not None:
                    key = (one.file, one.line, one.shape.dtype, one.shape.dims, one.op_name)
                    products[key] += 1
                    first.setdefault(key, one)
    repeated = {key: count for key, count in products.items() if count >= MIN_BLOCKS}
    if not repeated:
        return None
    counts = Counter(repeated.values())
    times = max(counts, key=lambda count: (counts[count], -count))
    where = where_of(first[next(iter(repeated))])
    return Blocks(
        times=times,
        share=sum(repeated.values()) / sum(products.values()),
        where=Where(file=where.file, line=where.line),
    )


def constants_of(module: HloModule) -> list[tuple[Instruction, Instruction | None]]:
    """Return the constants of at least 1 MiB, largest first, each with the first op that reads it."""
    found = []
    for name in control_runs(module):
        computation = module.computations[name]
        large = {
            one.name: one for one in computation.instructions if one.opcode == "constant" and one.shape.bytes >= 1 << 20
        }
        readers: dict[str, Instruction] = {}
        for one in computation.instructions if large else ():
            for operand in one.operands:
                if operand in large:
                    readers.setdefault(operand, one)
        found += [(one, readers.get(one.name)) for one in large.values()]
    return sorted(found, key=lambda pair: -pair[0].shape.bytes)


def _call(function: CompiledFunction) -> Where:
    first = function.compilations[0]
    if first.file is None:
        return Where(file=function.defined_file, line=function.defined_line)
    return Where(file=first.file, line=first.line)


def _unrolled(trace: Trace, function: CompiledFunction, blocks: Blocks) -> Finding:
    first = function.compilations[0]
    total = first.spans.total()
    steps = max(len(trace.step_times_ns), trace.window_steps)
    stepping = max(sum(trace.step_times_ns), trace.window_ns or 0)
    longer = f" All {steps:,} timed steps take {format_ns(stepping)}." if stepping else ""
    return Finding(
        subject=f"equal blocks written out in {function.name}",
        title=fit_title(
            f"{function.name} compiles {blocks.times:,} equal blocks one by one: {format_ns(total)}",
            function.name,
        ),
        detail=f"Tracing takes {format_ns(first.trace_ns)}, lowering {format_ns(first.lower_ns)}, XLA "
        f"{format_ns(first.compile_ns)}. The products of {blocks.where.label()} occur {blocks.times:,} times in the "
        f"program, so compiling grows with the number of layers.{longer}",
        severity="medium",
        basis="measured",
        cost_ns=round(total * blocks.share * (1 - 1 / blocks.times)),
        once=Once(times=1, steps=steps_known(trace)),
        where=_call(function),
        evidence=({
            "function": function.name,
            "blocks": blocks.times,
            "block": blocks.where.label(),
            "trace_ns": first.trace_ns,
            "lower_ns": first.lower_ns,
            "compile_ns": first.compile_ns,
            "share_of_products": blocks.share,
        },),
        advice="Loop over the layers with jax.lax.scan, so that one block is compiled. Stack their weights "
        "(jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)) and scan(lambda x, p: (block(p, x), None), x, "
        "stacked). Flax has nn.scan and nnx.scan. jax.config.jax_compilation_cache_dir keeps programs between starts.",
    )  # fmt: skip


def _constants(module: HloModule, constants: list[tuple[Instruction, Instruction | None]]) -> Finding:
    total = sum(one.shape.bytes for one, _ in constants)
    label = module.name.partition("(")[0].partition(".")[0]
    reader = next((reader for _, reader in constants if reader is not None and reader.file is not None), None)
    where = Where(module=module.name) if reader is None else Where(file=reader.file, line=reader.line)
    return Finding(
        subject=f"large constants in {label}",
        title=fit_title(f"{format_bytes(total)} of constants are compiled into {label}", label),
        detail="Arrays that a jitted function closes over are part of the program: XLA reads and folds them while it "
        "compiles, each program holds a copy, and a new value compiles again.",
        severity="medium" if total >= 8 * MIN_CONSTANT_BYTES else "low",
        basis="structural",
        cost_bytes=total,
        bytes_are="held",
        where=where,
        evidence=tuple(
            {
                "constant": one.name,
                "shape": f"{one.shape.dtype}[{','.join(map(str, one.shape.dims))}]",
                "size_bytes": one.shape.bytes,
                "read_at": None if reader is None or reader.file is None else f"{reader.file}:{reader.line}",
            }
            for one, reader in constants[:MAX_ROWS]
        ),
        advice="Pass the array as an argument of the jitted function instead of closing over it: "
        "jax.jit(lambda weights, x: ...)(weights, x).",
    )


def _cold(trace: Trace, functions: tuple[CompiledFunction, ...], total: int, spared: int) -> Finding:
    """Finding of a missing cache; ``spared`` ns are what a scan over the unrolled blocks saves."""
    without_blocks = f" With the equal blocks in a scan, {format_ns(total - spared)} remain." if spared else ""
    worst = max(functions, key=lambda one: one.compilations[0].spans.total())
    return Finding(
        subject="no compilation cache",
        title=f"XLA compiles for {format_ns(total)} at each start: no cache on disk",
        detail=f"{len(functions):,} functions are compiled; {worst.name} takes "
        f"{format_ns(worst.compilations[0].spans.total())}.{without_blocks}",
        severity="medium",
        basis="measured",
        cost_ns=total - spared,
        once=Once(times=len(functions), steps=steps_known(trace)),
        where=_call(worst),
        evidence=tuple(
            {
                "function": one.name,
                "spent_ns": one.compilations[0].spans.total(),
                "trace_ns": one.compilations[0].trace_ns,
                "lower_ns": one.compilations[0].lower_ns,
                "compile_ns": one.compilations[0].compile_ns,
            }
            for one in functions[:MAX_ROWS]
        ),
        advice='Keep programs between starts: jax.config.update("jax_compilation_cache_dir", "/path/that/stays") '
        "before the first jitted call.",
    )
