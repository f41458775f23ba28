"""The partitioner exchanges data between devices although no line of the program requests it.

Example:
    Before::

        y = attention(mlp(x))

    After::

        x = jax.lax.with_sharding_constraint(mlp(x), NamedSharding(mesh, P("data", None, None)))
        y = attention(x)

Why it costs:
    XLA's SPMD partitioner makes every op fit the shardings of its operands. If two of them do not match (one value
    split by rows, the other by columns), it inserts an all-to-all or a permutation to convert one. This moves the whole
    value over the interconnect, often in every layer and again in the backward pass, and the device usually waits for
    it.

How it is found:
    All-to-alls of the compiled program, and permutations that come from elementwise ops, whose path (`op_name`) ends in
    an ordinary op instead of a collective (`all_to_all`, `ppermute`, `sharding_constraint` ...) and is not inside a
    `shard_map`. Also all-gathers whose result is only cut again by the number of the device: no device needs the whole
    value, and XLA warns of an *involuntary full rematerialization*. Other all-gathers, reduce-scatters and all-reduces
    are not reported, because they are normal for FSDP and tensor parallelism; nor are permutations around matrix
    products, which are the ring of a windowed einsum. Bytes are the larger of operands and result, times the trip
    counts of the loops around. Programs without paths are not judged. Expert-parallel dispatch written as an einsum
    also becomes an all-to-all of the partitioner, where it is intended.

    The cost is the time that the device waits for the exchange: measured, as the time while nothing else ran on it
    (including waiting for slower devices); for a program alone, its bytes over all links of the device, less the work
    that is scheduled at the same time, in one run, on `--device` or an H100 or TPU v5e (assumed). A program compiled
    for a CPU has no cost: its devices share the cores of one host, so while one waits the others compute. Recorded
    waits are in the evidence.

Fix:
    Set the layout of the value once, where the two meet, in forward and backward::

        x_BTD = jax.lax.with_sharding_constraint(x_BTD, NamedSharding(mesh, P("data", None, None)))

    and give the parameters of the two ops matching specs. `jax.debug.visualize_array_sharding` and
    `jax.debug.inspect_array_sharding` show what the partitioner chose. With explicit mesh axes
    (`jax.sharding.AxisType.Explicit`) a mismatch is an error instead of an exchange.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from perfscope.analyzers.hlo import Collective, by_size, collectives, primitive, where_of
from perfscope.analyzers.ops import spans_of_parts
from perfscope.analyzers.programs.collectives import collective_time, waiting_part
from perfscope.analyzers.programs.gathered_and_cut import GatheredAndCut, gathered_and_cut
from perfscope.analyzers.programs.saving import price, priced
from perfscope.model.finding import AbstainError, Cell, Finding, Scope, Where
from perfscope.model.severity import Severity
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes, format_share

MIN_BYTES = 4096
"""Smallest number of bytes per run of the program and line. Smaller exchanges contain counters and scalars."""

MIN_BYTES_SHARE = 0.01
"""Smallest share of the collectives' bytes: below it the variation of a step hides the cost."""

MEDIUM_BYTES_SHARE = 0.25
"""Share of the collectives' bytes from which severity is medium if no time is known; it is never high then."""

MAX_ROWS = 20

_EXPLICIT = frozenset(
    {
        "all_gather", "all_to_all", "device_put", "pbroadcast", "pgather", "ppermute", "psum", "psum2",
        "psum_scatter", "ragged_all_to_all", "reduce_scatter", "reshard", "shard_map", "sharding_constraint",
    }
)  # fmt: skip
"""Primitives that request an exchange or a layout."""

_ELEMENTWISE = frozenset(
    {
        "add", "add_any", "convert_element_type", "copy", "div", "erf", "exp", "integer_pow", "logistic", "max", "min",
        "mul", "neg", "pow", "rsqrt", "select_n", "sqrt", "square", "sub", "tanh", "transpose",
    }
)  # fmt: skip
"""Primitives that never need a neighbour's values: a permutation from one of them is a change of layout. Slices,
concatenations and windows need them at the borders of the shards.
"""

_EXPERTS = re.compile(r"moe|expert|dispatch|combine", re.IGNORECASE)
"""Scopes of a mixture of experts. They only lower the severity."""


def examined(trace: Trace) -> Scope:
    """Count the collectives of the programs."""
    return Scope(len(trace.fact(collectives)), "collectives in the compiled programs")


def check(trace: Trace) -> Iterable[Finding]:
    """Yield one finding per line of the program at which values are resharded."""
    every = trace.fact(collectives)
    if not every and not any(module.is_scheduled for module in trace.hlo):
        raise AbstainError("no compiled program among the XLA programs: the partitioner may still add collectives")
    if every and not any(collective.op.op_name or collective.start.op_name for collective in every):
        raise AbstainError("the program's collectives have no paths (op_name), so their origin is unknown")
    whole = sum(collective.bytes_a_run for collective in every)
    places: dict[tuple[Where, str], list[Collective]] = {}
    for collective in every:
        if _is_implicit(collective):
            places.setdefault((_where(collective), collective.kind), []).append(collective)
    for (where, kind), members in places.items():
        if sum(member.bytes_a_run for member in members) >= max(MIN_BYTES, MIN_BYTES_SHARE * whole):
            yield _finding(trace, where, kind, by_size(members), whole)
    for found in trace.fact(gathered_and_cut):
        if found.bytes >= max(MIN_BYTES, MIN_BYTES_SHARE * whole):
            yield _gathered(trace, found, whole)


def _gathered(trace: Trace, found: GatheredAndCut, whole: int) -> Finding:
    """Return a finding about a value that every device gathers whole and slices again."""
    before, after = (f"[{','.join(map(str, parts))}]" for parts in (found.before, found.after))
    shape = f"{found.whole.dtype}[{','.join(map(str, found.whole.dims))}]"
    saved = price(trace, (waiting_part(trace, one) for one in found.gathers if one.module.platform != "cpu"))
    where = where_of(found.gathers[0].op if found.gathers[0].op.op_name else found.gathers[0].start)
    finding = Finding(
        subject="gathered whole and cut again",
        title=f"{shape} is gathered whole to get from sharding {before} to {after}",
        detail=f"Every device receives all {format_bytes(found.whole.bytes)} and keeps "
        f"{format_bytes(found.cut.shape.bytes)}: XLA has no direct conversion between parts {before} and {after} "
        "(it warns of an involuntary full rematerialization).",
        severity="medium" if found.bytes >= MEDIUM_BYTES_SHARE * whole else "low",
        basis="structural",
        cost_bytes=found.bytes,
        where=Where(file=where.file, line=where.line) if where.file is not None else Where(module=where.module),
        evidence=tuple(_row(trace, one) for one in found.gathers[:MAX_ROWS]),
        spans=spans_of_parts(trace, [waiting_part(trace, one) for one in found.gathers]),
        advice="Give the value one sharding where it is made and where it is used. Change the spec of parts "
        f"{after} in jax.lax.with_sharding_constraint (or in_shardings, out_shardings) to divide the "
        "same dimensions over the same axes of the mesh, or convert in two steps that each move one axis.",
    )
    return priced(finding, saved) if saved is not None and saved.cost["cost_ns"] else finding


def _path(collective: Collective) -> str:
    return collective.op.op_name or collective.start.op_name


def _is_implicit(collective: Collective) -> bool:
    path = _path(collective)
    name = primitive(path)
    if not path or name in _EXPLICIT or "shard_map" in path:
        return False
    return collective.kind == "all-to-all" or (collective.kind == "collective-permute" and name in _ELEMENTWISE)


def _where(collective: Collective) -> Where:
    where = where_of(collective.op if collective.op.op_name else collective.start)
    if where.file is not None:
        return Where(file=where.file, line=where.line)
    return Where(module=where.module, op=where.op)


def _finding(trace: Trace, where: Where, kind: str, members: list[Collective], whole: int) -> Finding:
    moved = sum(member.bytes_a_run for member in members)
    times = sum(member.runs.times for member in members)
    least = "" if all(member.runs.exact for member in members) else "at least "
    # a primitive may include its parameters in brackets
    names = Counter(primitive(_path(member)).partition("[")[0] for member in members)
    makers = ", ".join(name for name, _ in names.most_common(4))
    several, experts = len(members) > 1, all(_EXPERTS.search(_path(member)) for member in members)
    saved = price(trace, (waiting_part(trace, member) for member in members if member.module.platform != "cpu"))
    if saved is not None and not saved.cost["cost_ns"]:
        saved = None  # all of it overlaps other work
    severity: Severity = "medium" if moved >= MEDIUM_BYTES_SHARE * whole else "low"
    if saved is not None:
        severity = saved.cost["severity"]
    finding = Finding(
        subject=f"unrequested {kind}",
        title=f"{len(members):,} {kind}{'s' if several else ''} that no line requests"
        + (f": {least}{format_bytes(moved)} per device" if saved is None else ""),
        detail=f"{least}{times:,} per run, {least}{format_bytes(moved)} per device, "
        f"{format_share(moved, whole)} of what the collectives move: the partitioner changes the layout of values of "
        f"{makers}"
        + ("." if saved is None else f"; the device waits {saved.text}.")
        + (" It is intended if it is the dispatch to experts." if experts else ""),
        severity="low" if experts else severity,
        basis="structural",
        cost_bytes=moved,
        where=where,
        evidence=tuple(_row(trace, member) for member in members[:MAX_ROWS]),
        spans=spans_of_parts(trace, [waiting_part(trace, member) for member in members]),
        advice="Fix the layout: x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(...))). Use the same "
        "spec "
        "where the value is made and where it is used, and matching specs of the parameters. If it is the dispatch of "
        "an expert-parallel layer, it is intended: "
        "jax.shard_map with jax.lax.all_to_all states that.",
    )
    return priced(finding, saved, finding.severity)


def _row(trace: Trace, collective: Collective) -> dict[str, Cell]:
    time = collective_time(trace, collective)
    return {
        "collective": collective.start.name,
        "program": collective.module.name,
        "from": _path(collective)[-120:],
        "backward": "yes" if "transpose(" in _path(collective) else "no",
        "moved_bytes": collective.bytes,
        "times": collective.runs.times,
        "group_size": collective.group_size,
        "blocks": collective.blocks or "no",
        "transfer_ns": time.transfer_ns,
        "waits_ns": time.waits_ns,
        "measured_ns": time.measured_ns,
    }
