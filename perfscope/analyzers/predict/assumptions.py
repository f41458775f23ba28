"""Factors between a vendor's peaks and typical kernels, each with its source.

They were not fitted to a program; ``docs/compile-model.md`` lists their errors. Categories of kernels that were
measured on GPUs use curves instead (``efficiency.py``); ``calibrate`` replaces them by measured times, for one program
and device.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from perfscope.analyzers.devices import Target
from perfscope.analyzers.hlo import HloModule, Instruction, fused

_MATRIX = {
    "NVIDIA": "best measured: 80% of the peak on H100 and H200, 87% on A100 (maximum achievable matmul FLOPS, "
    "stas00/ml-engineering; not looked up); usual shapes reach less",
    "AMD": "best measured: 50 to 58% of the peak on MI300X (maximum achievable matmul FLOPS, "
    "stas00/ml-engineering; not looked up)",
    "Google": "a recorded training step on v5p: products of convolution fusions reach 84% (xprof's golden data); "
    "padding to the unit's 128 (256 on v6e) counts apart",
}

_MEMORY = {
    "NVIDIA": "published measurements on H100: copies 93%, coalesced loads 84%, strided loads 57%",
    "AMD": "published measurements on MI300X: BabelStream 81%, copies 40 to 60%",
    "Google": "a recorded training step on v5p: loop fusions reach 72%, changes of layout 59% (xprof's golden data)",
}

BLIND_SPOTS: tuple[str, ...] = (
    "waiting for one another: all devices reach each collective at the same time",
    "no autotuning: compiled without a device, tile sizes are XLA's defaults, and products that a device would hand to "
    "cuBLAS or cuDNN are Triton kernels",
    "caches: the low end takes the shared cache as perfect for data written just before, the high end as absent",
    "clocks and power: boost clock throughout; devices under load run slower",
    "contention: collectives and copies do not slow down concurrent work, and other jobs use no link",
    "the host: input pipelines, Python, transfers and synchronization between programs are not included",
)

_STRIDED = frozenset(
    {
        "concatenate", "copy", "dynamic-slice", "dynamic-update-slice", "gather", "pad", "reduce", "reduce-window",
        "reverse", "scatter", "select-and-scatter", "sort", "transpose",
    }
)  # fmt: skip


class Assumption(Struct, frozen=True, kw_only=True):
    """A number that neither a program nor a data sheet contains."""

    name: str
    text: str
    """The assumption with its numbers."""
    source: str


class Factors(Struct, frozen=True, kw_only=True):
    """Factors of the high end of a range, and the few overheads of the low end. Times in ns."""

    matrix: float
    """Share of the peak that matrix products reach, before the effects of waves and tiles."""
    vector: float
    """Share of the ``float32`` peak (or of ``vector_flops``) that other arithmetic reaches."""
    transcendental: float
    """Functions such as ``exp``: results per second as a share of the ``float32`` peak."""
    vector_per_matrix: float | None
    """If the vendor states no ``float32`` peak: vector FLOP/s relative to bfloat16 products."""
    memory: float
    """Share of the memory bandwidth that elementwise kernels reach."""
    strided: float
    """The same for kernels that reorder, gather, cut or reduce."""
    cache_speedup: float
    """Bandwidth of the shared cache relative to memory: the low end for recently written data."""
    kernel: tuple[int, int]
    """Shortest time of a kernel, low and high."""
    scalar: tuple[int, int]
    """The same for an instruction on single numbers: a kernel on a GPU, a few cycles on a TPU."""
    gap: tuple[int, int]
    """Gap between two kernels of a stream, low and high."""
    host: tuple[int, int]
    """Host time to launch one kernel without command buffers, low and high; 0: whole programs are launched."""
    turn: tuple[int, int]
    """Time per iteration of a loop whose end the host must read back each time, low and high."""
    link: float
    """Share of the links' bandwidth that large collectives reach."""
    network: float
    """Share of the network's bandwidth that they reach."""
    ramps: bool
    """Whether messages below 128 MiB reach less of it, as NCCL's table has it."""
    hop: tuple[int, int]
    """Latency of one step between neighbours over fast links, low and high."""
    far_hop: tuple[int, int]
    """Latency of one step over the network."""
    collective: tuple[int, int]
    """Latency of any collective in addition to its steps."""
    host_link: tuple[int, int]
    """Bytes/s between a device and its host, for the low and high end of the time (so the faster first)."""
    tile: tuple[int, int]
    """Rows and columns of the result that one core computes at a time."""
    split: int
    """Length of the contraction from which libraries divide it among idle cores."""


_NVIDIA = Factors(
    matrix=0.60,
    vector=0.25,
    transcendental=1 / 16,
    vector_per_matrix=None,
    memory=0.80,
    strided=0.57,
    cache_speedup=2.5,
    kernel=(1_000, 3_000),
    scalar=(1_000, 3_000),
    gap=(0, 2_000),
    host=(2_000, 5_000),
    turn=(0, 20_000),
    link=0.70,
    network=0.70,
    ramps=True,
    hop=(600, 3_400),
    far_hop=(2_700, 14_000),
    collective=(1_000, 8_400),
    host_link=(63 * 10**9, 20 * 10**9),
    tile=(128, 128),
    split=1024,
)

_AMD = Factors(
    matrix=0.40,
    vector=0.25,
    transcendental=1 / 16,
    vector_per_matrix=None,
    memory=0.70,
    strided=0.50,
    cache_speedup=2.5,
    kernel=(600, 6_000),
    scalar=(600, 6_000),
    gap=(0, 4_000),
    host=(2_000, 8_000),
    turn=(0, 20_000),
    link=0.60,
    network=0.70,
    ramps=False,
    hop=(600, 3_400),
    far_hop=(2_700, 14_000),
    collective=(1_000, 12_000),
    host_link=(63 * 10**9, 20 * 10**9),
    tile=(256, 256),
    split=1024,
)

_TPU = Factors(
    matrix=0.60,
    vector=0.25,
    transcendental=1 / 16,
    vector_per_matrix=1 / 32,
    memory=0.70,
    strided=0.50,
    cache_speedup=1.0,
    kernel=(250, 1_500),
    scalar=(0, 100),
    gap=(0, 200),
    host=(0, 0),
    turn=(0, 2_000),
    link=0.80,
    network=0.70,
    ramps=False,
    hop=(500, 1_000),
    far_hop=(10_000, 30_000),
    collective=(0, 5_000),
    host_link=(63 * 10**9, 10 * 10**9),
    tile=(128, 128),
    split=0,
)


def factors_for(target: Target) -> Factors:
    """Return the factors for the target's vendor."""
    return vendor_factors(target.device.vendor)


def vendor_factors(vendor: str) -> Factors:
    """Return the factors for a vendor as named in the catalogue; NVIDIA's for unknown vendors."""
    return {"AMD": _AMD, "Google": _TPU}.get(vendor, _NVIDIA)


def listed(target: Target, factors: Factors, *, collectives: bool, between_nodes: bool) -> tuple[Assumption, ...]:
    """Assumptions that can have affected the estimate, for a report."""
    assumptions = [
        *_of_arithmetic(target, factors),
        *(_of_gpu if target.platform == "gpu" else _of_tpu)(target, factors),
    ]
    if collectives:
        assumptions += _of_links(target, factors)
    if between_nodes:
        assumptions.append(_of_network(target, factors))
    return tuple(assumptions)


def _of_arithmetic(target: Target, factors: Factors) -> Iterator[Assumption]:
    vendor, peaks = target.device.vendor, f"peak of {target.device.name}"
    limit = f"no {peaks} exceeded" if target.platform == "gpu" else f"every {peaks} reached"
    yield Assumption(
        name="peaks",
        text=f"low end: {limit}, nothing waits",
        source=target.device.source,
    )
    if target.platform == "gpu":
        yield Assumption(
            name="kernels",
            text="curves of size by category and architecture, with the ends that nine in ten measured kernels lie "
            "between; products of XLA programs reach the peak at the low end; the shares below hold where none was "
            "measured",
            source="public recordings of H100, A100, V100 and MI300X; docs/compile-model.md lists how many lie inside",
        )
    yield Assumption(
        name="matrix products",
        text=f"high end: {factors.matrix:.0%} of the peak, less where tiles do not fill the cores",
        source=_MATRIX.get(vendor, _MATRIX["NVIDIA"]),
    )
    yield Assumption(
        name="memory",
        text=f"high end: {factors.memory:.0%} of the bandwidth, {factors.strided:.0%} where a kernel reorders, "
        "gathers, cuts or reduces",
        source=_MEMORY.get(vendor, _MEMORY["NVIDIA"]),
    )
    yield Assumption(
        name="everything else",
        text=f"high end: {factors.vector:.0%} of the vector peak, a sixteenth for exp and its like",
        source="half of the peak is without multiply-add; CUDA programming guide, arithmetic throughput: 16 "
        "results of the special function unit a cycle and SM, 128 of additions",
    )


def _of_gpu(target: Target, factors: Factors) -> Iterator[Assumption]:
    recorded = "MI300X" if target.device.vendor == "AMD" else "H100 and A100"
    yield Assumption(
        name="shortest kernel",
        text=f"{_us(factors.kernel)} us, and {_us(factors.gap)} us to the next",
        source=f"1 us: XLA's own cost model; high end: small kernels in recordings of {recorded}",
    )
    yield Assumption(
        name="cache",
        text="low end: data written just before and fits the shared cache is read "
        f"{factors.cache_speedup:g} times as fast as memory; high end: from memory",
        source="XLA's own cost model; measured on H100: 1.6 times in one direction, about 3 in both",
    )
    yield Assumption(
        name="launches",
        text=f"{_us(factors.host)} us of the host each where the program runs without command buffers",
        source="published measurements: 4 to 6 us per launch; high end counts where all of them take longer "
        "than the device",
    )


def _of_tpu(_: Target, factors: Factors) -> Iterator[Assumption]:
    yield Assumption(
        name="shortest instruction",
        text=f"{_us(factors.kernel)} us, on single numbers {_us(factors.scalar)}",
        source="instructions below 20 kB in a recorded training step on v5p (xprof's golden data): 0.51 us the "
        "shortest, 1.34 us the 95th percentile",
    )


def _of_links(target: Target, factors: Factors) -> Iterator[Assumption]:
    yield Assumption(
        name="links",
        text=f"high end: {factors.link:.0%} of the bandwidth for large messages"
        f"{', 50 to 90% of that below 256 MiB' if factors.ramps else ''}, {_us(factors.hop)} us per step",
        source="NCCL's own tuning table (ring, LL and Simple); 370 of 450 GB/s measured on 8 H100"
        if target.platform == "gpu"
        else "How to Scale Your Model (Austin et al. 2025): about 1 us a hop; no wrapped axis, no second "
        "direction at the high end where the topology may lack them",
    )
    yield Assumption(
        name="placement",
        text="partition ids follow the devices' order: neighbours in a node, row by row in a slice",
        source="default mapping of a mesh to devices; a program does not contain it",
    )


def _of_network(target: Target, factors: Factors) -> Assumption:
    network = target.network
    cards = "not known" if network is None else f"{network.cards} cards of {network.link} a node"
    return Assumption(
        name="network",
        text=f"between nodes: {cards}; high end: {factors.network:.0%} of it",
        source="not known" if network is None else network.source,
    )


def _us(pair: tuple[int, int]) -> str:
    low, high = (f"{ns / 1000:g}" for ns in pair)
    return low if low == high else f"{low} to {high}"


def is_strided(module: HloModule, instruction: Instruction) -> bool:
    """Whether it reorders, gathers, cuts, joins or reduces, so that loads are not all of contiguous lines."""
    return any(instruction.opcode in _STRIDED for instruction in fused(module, instruction))


def is_contended(module: HloModule, instruction: Instruction) -> bool:
    """Whether it adds at indexed places that may coincide, so that atomics may queue."""
    return any(
        instruction.opcode == "scatter" and instruction.attributes.get("unique_indices") != "true"
        for instruction in fused(module, instruction)
    )
