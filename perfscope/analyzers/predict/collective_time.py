"""The time of a collective as a range: bytes by the algorithms that libraries use, steps by their latency.

``S`` are the bytes of the whole array (the result of an all-gather, the operand of a reduce-scatter and of a device's
part of an all-to-all), ``n`` devices take part, ``B`` is what one device sends a second over its links.

========================  =======================================================================
all-gather                ``S (n-1)/n / B``, ``n-1`` steps in a ring
reduce-scatter            the same
all-reduce                ``2 S (n-1)/n / B``; where the switch adds up: ``S (n+1)/n / B``
all-to-all                ``S (n-1)/n / B``, 1 step
collective-permute        ``S / B``, 1 step
collective-broadcast      ``S / B``
========================  =======================================================================

(nccl-tests, PERFORMANCE.md, for the factors of the bus bandwidth.) Between nodes the slower of two parts counts: what
goes over the links inside a node, and what leaves it over the network.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from math import prod

from msgspec import Struct

from perfscope.analyzers.devices import NS, Target, closes
from perfscope.analyzers.hlo import KINDS, Collective, Computation, HloModule, InstructionCost, Runs, dims_of
from perfscope.analyzers.predict.assumptions import Factors
from perfscope.analyzers.predict.spans import Range, ns_range

REACHED = (
    *[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 6, 0.6, 0.6, 0.7, 0.8, 0.9,
)  # fmt: skip
"""Share of the bandwidth of large messages that messages of 64 B, 128 B ... 128 MiB reach with a tree and the protocol
Simple, by which NCCL corrects its own prediction (``src/graph/tuning.cc``)."""

_START, _DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"


class TorusTime(Struct, frozen=True, kw_only=True):
    """Seconds without latency, and number of steps between neighbours."""

    low: float
    high: float
    steps: tuple[int, int]
    words: str
    known: bool


def torus_seconds(kind: str, moved: int, group: tuple[int, ...], target: Target) -> TorusTime:
    """A collective of ``moved`` bytes (``S``) among ``group``, ids in the order of the slice.

    Devices of a group that differ along some axes of the slice exchange along all of them at once at best, in rings
    where an axis closes, and along one line with an open end at worst. Per link and direction ``b`` bytes/s (How to
    Scale Your Model, Austin et al. 2025):

    ========================  ===================================  =======================
    all-gather                ``S (n-1)/n / (2 b a)``, ``a`` axes   open line: ``/ b``
    all-reduce                twice that
    all-to-all                ``S n / 8 / b`` in a ring             open line: ``S n / 4 / b``
    collective-permute        ``S / b`` to a neighbour              ``S hops / b``
    ========================  ===================================  =======================
    """
    node, bandwidth = target.device.node, target.device.link_bandwidth
    lengths = _lengths(group, target)
    axes = [axis for axis, length in enumerate(lengths) if length > 1]
    count = max(1, len(group))
    ports = node.ports if node is not None and node.ports else 2 * max(1, len(target.topology))
    shape = f"{'x'.join(str(length) for length in lengths if length > 1) or '1'} of a {target.layout} torus"
    if not bandwidth:
        return TorusTime(low=0.0, high=0.0, steps=(1, 1), words=shape, known=False)
    link = bandwidth / ports
    if count < 2:
        return TorusTime(low=0.0, high=0.0, steps=(0, 0), words=shape, known=True)
    closed = [axis for axis in axes if _closes(target, axis, lengths[axis])]
    far = max((length - 1 for length in lengths), default=1)
    # low: all axes at once, both directions where a ring closes (an open line's ends have one neighbour)
    reach = link * sum(2 if axis in closed else 1 for axis in axes) if axes else link
    share = (count - 1) / count
    if kind in ("all-to-all", "ragged-all-to-all"):
        longest = max((lengths[axis] for axis in axes), default=count)
        shut = all(lengths[axis] < longest or axis in closed for axis in axes)
        low = moved * longest / (8 if shut else 4) / link / max(1, count // longest)
        high = moved * longest / 4 / link
    elif kind in ("collective-permute", "collective-broadcast"):
        low, high = moved / link, moved * max(1, far) / link
    else:
        twice = 2 if kind == "all-reduce" else 1
        low, high = twice * moved * share / reach, twice * moved * share / link
    steps = sum(length // 2 if axis in closed else length - 1 for axis, length in enumerate(lengths))
    if kind == "all-reduce":
        steps *= 2
    return TorusTime(low=min(low, high), high=high, steps=(1, max(1, steps)), words=shape, known=True)


def _lengths(group: tuple[int, ...], target: Target) -> tuple[int, ...]:
    """Number of the group's positions along each axis; ids count row by row, the last axis fastest.

    Chips of two devices (TPU7x) hold two neighbouring ids.
    """
    shape = target.topology or (target.count,)
    each = max(1, target.count // max(1, prod(shape)))
    seen: list[set[int]] = [set() for _ in shape]
    for device in group:
        rest = device // each
        for axis in range(len(shape) - 1, -1, -1):
            rest, position = divmod(rest, shape[axis])
            seen[axis].add(position)
    return tuple(len(places) for places in seen)


def _closes(target: Target, axis: int, length: int) -> bool:
    whole = target.topology[axis] if axis < len(target.topology) else length
    if length < whole:
        return False
    return closes(target.device, length)


class CollectiveRange(Struct, frozen=True, kw_only=True):
    """One run of a collective."""

    time: Range
    algorithm: str
    """``ring of 8 over NVLink 4``, ``16 devices in 2 nodes``, ``torus 2x4``."""
    devices: int
    nodes: int
    known: bool
    """False: the link between the devices is unknown; the time is latency only."""


class Exchange(Struct, frozen=True, kw_only=True):
    """An exchange, independent of the program that requests it."""

    kind: str
    """``all-reduce`` and so on, named as in XLA."""
    bytes: int
    """``S``."""
    group: tuple[int, ...]
    """Participating devices, by their number in the target."""


def collective_range(collective: Collective, target: Target, factors: Factors) -> CollectiveRange:
    """One run of a collective of a compiled program on the target."""
    return exchange_range(
        Exchange(kind=collective.kind, bytes=collective.bytes, group=_group(collective, target)), target, factors
    )


def exchange_range(exchange: Exchange, target: Target, factors: Factors) -> CollectiveRange:
    """One exchange on the target."""
    group = exchange.group
    if target.platform == "tpu":
        return _torus(exchange, target, factors, group)
    nodes = Counter(device // max(1, target.node_devices) for device in group)
    inside = max(nodes.values(), default=1)
    low = high = 0.0
    known = True
    bandwidth = target.device.link_bandwidth
    if inside > 1 or exchange.kind == "collective-permute":
        if bandwidth:
            low, high = _inside(exchange, target, factors, len(group), inside, float(bandwidth))
        else:
            known = False
    high /= _reached(exchange, factors)
    far = len(nodes) > 1
    if far:
        if target.network is None:
            known = False
        else:
            reach = target.network.bandwidth(inside, max(1, target.node_devices))
            low = max(low, _between(exchange, len(nodes), len(group), optimal=True) / reach)
            slow_reach = reach * factors.network * _reached(exchange, factors)
            high = max(high, _between(exchange, len(nodes), len(group), optimal=False) / slow_reach)
    steps = _steps(exchange.kind, inside)
    far_steps = _steps(exchange.kind, len(nodes)) if far else (0, 0)
    hop, far_hop, base = factors.hop, factors.far_hop, factors.collective
    quick = base[0] + steps[0] * hop[0] + far_steps[0] * far_hop[0]
    slow = base[1] + steps[1] * hop[1] + far_steps[1] * far_hop[1]
    return CollectiveRange(
        time=ns_range(low * NS + quick, high * NS + slow),
        algorithm=_algorithm_words(exchange, target, len(group), len(nodes)),
        devices=len(group),
        nodes=len(nodes),
        known=known,
    )


def _reached(exchange: Exchange, factors: Factors) -> float:
    """Share of the bandwidth of large messages that a message of this size reaches at the high end."""
    place = (exchange.bytes // 64).bit_length() - 1
    return REACHED[place] if factors.ramps and 0 <= place < len(REACHED) else 1.0


def _group(collective: Collective, target: Target) -> tuple[int, ...]:
    """Devices of one exchange: the group that spans most nodes; for a permute, such a pair."""
    if collective.kind == "collective-permute":
        ids = dims_of(collective.op.attributes.get("source_target_pairs", ""))
        pairs = list(zip(ids[::2], ids[1::2], strict=False))
        apart = [pair for pair in pairs if pair[0] != pair[1]]
        nodes = max(1, target.node_devices)
        crossing = next((pair for pair in apart if pair[0] // nodes != pair[1] // nodes), None)
        return crossing or (apart[0] if apart else (0, 1))
    groups = collective.op.replica_groups
    if not groups:
        return tuple(range(max(1, collective.group_size)))
    devices = max(1, target.node_devices)
    return max(groups, key=lambda ids: (len({number // devices for number in ids}), len(ids)))


def _inside(
    exchange: Exchange, target: Target, factors: Factors, devices: int, inside: int, bandwidth: float
) -> tuple[float, float]:
    """Seconds over the links of a node, low and high."""
    moved = _sent(exchange.kind, devices, inside) * exchange.bytes
    node = target.device.node
    low = high = moved / bandwidth
    if exchange.kind == "all-reduce" and node is not None and node.reduces and inside > 2:
        low = min(low, exchange.bytes * (inside + 1) / inside / bandwidth)
    if node is not None and node.joined == "mesh" and node.ports:
        # links between every pair: a ring of few devices, or a pair, has only part of the links
        used = min(node.ports, max(1, inside - 1))
        low = low * node.ports / used
        high = high * node.ports / (1 if exchange.kind == "collective-permute" else used)
    return low, high / factors.link


def _sent(kind: str, devices: int, inside: int) -> float:
    """Bytes each device sends within its node, relative to ``S``."""
    share = (inside - 1) / inside if inside else 0.0
    if kind == "all-reduce":
        return 2 * share
    if kind in ("all-to-all", "ragged-all-to-all"):
        return (inside - 1) / devices
    if kind in ("collective-permute", "collective-broadcast"):
        return 1.0
    return share


def _between(exchange: Exchange, nodes: int, devices: int, *, optimal: bool) -> float:
    """Bytes that leave a node. ``optimal``: the node gathers first; else one ring through all devices."""
    share = (nodes - 1) / nodes if optimal else (devices - 1) / devices
    if exchange.kind == "all-reduce":
        return 2 * share * exchange.bytes
    if exchange.kind in ("all-to-all", "ragged-all-to-all"):
        return exchange.bytes * devices / nodes * (nodes - 1) / nodes
    if exchange.kind in ("collective-permute", "collective-broadcast"):
        return float(exchange.bytes)
    return share * exchange.bytes


def _steps(kind: str, devices: int) -> tuple[int, int]:
    """Steps between neighbours: a tree's at least; at most a ring's, or a tree's if the library chooses."""
    if devices < 2:
        return 0, 0
    if kind in ("all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast"):
        return 1, 1
    tree = math.ceil(math.log2(devices))
    ring = devices - 1
    return (tree, min(ring, 2 * tree)) if kind != "all-reduce" else (tree, min(2 * ring, 4 * tree))


def _torus(exchange: Exchange, target: Target, factors: Factors, group: tuple[int, ...]) -> CollectiveRange:
    torus = torus_seconds(exchange.kind, exchange.bytes, group, target)
    low = max(torus.low * NS, torus.steps[0] * factors.hop[0])
    slow = factors.collective[1] + torus.steps[1] * factors.hop[1]
    return CollectiveRange(
        time=ns_range(low, torus.high * NS / factors.link + slow),
        algorithm=torus.words,
        devices=len(group),
        nodes=1,
        known=torus.known,
    )


def _algorithm_words(exchange: Exchange, target: Target, devices: int, nodes: int) -> str:
    link = target.device.link or "PCIe"
    if nodes > 1:
        return f"{devices} devices in {nodes} nodes"
    if exchange.kind == "collective-permute":
        return f"pairs over {link}"
    reduces = target.device.node is not None and target.device.node.reduces
    if exchange.kind == "all-reduce" and reduces:
        return f"{devices} over {link}, in the switch or a ring"
    return f"{'ring of ' if 'all-to-all' not in exchange.kind else ''}{devices} over {link}"


def held_collective(module: HloModule, computation: Computation, row: InstructionCost) -> Collective | None:
    """The collective whose bytes a fusion sends: it begins in the fusion, or runs in it from begin to end."""
    instruction = row.instruction
    if instruction.opcode != "fusion" or not row.once.wire_bytes or not instruction.called:
        return None
    body = module.computations[instruction.called[0]]
    op = next((inner for inner in body.instructions if inner.opcode.removesuffix("-start") in KINDS), None)
    if op is None:
        return None
    begins = any(inner.custom_call_target == _START for inner in body.instructions)
    sent = sum(body.by_name[name].shape.bytes for name in op.operands)
    return Collective(
        module=module,
        computation=computation,
        start=instruction,
        done=instruction,
        kind=op.opcode.removesuffix("-start"),
        op=op,
        bytes=max(sent, op.shape.bytes),
        runs=Runs(times=row.runs, exact=row.runs_exact),
        between=(),
        blocks=None if begins else "never split into start and done",
    )


def ended_by(module: HloModule) -> Mapping[tuple[str, str], str]:
    """(computation, fusion that ends a collective) -> the fusion that begins it, joined by the channel."""
    starts: dict[tuple[str, int], str] = {}
    ends: list[tuple[str, str, int]] = []
    for computation, instruction in module.instructions():
        if instruction.opcode != "fusion" or not instruction.called:
            continue
        body = module.computations[instruction.called[0]]
        targets = {inner.custom_call_target for inner in body.instructions}
        channel = next((inner.channel_id for inner in body.instructions if inner.opcode in KINDS), None)
        if channel is None:
            continue
        if _START in targets:
            starts.setdefault((computation.name, channel), instruction.name)
        elif _DONE in targets:
            ends.append((computation.name, instruction.name, channel))
    return {
        (computation, name): starts[computation, channel]
        for computation, name, channel in ends
        if (computation, channel) in starts
    }
