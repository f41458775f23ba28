"""Published tables of nccl-tests against the model of collectives: all-reduces by size, inside the range or not.

Prints the table of docs/compile-model.md::

    python -m benchmarks.published_collectives
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Network, Target, parse_target
from perfscope.analyzers.predict import Exchange, exchange_range, factors_for

US = 1_000
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Measured(Struct, frozen=True, kw_only=True):
    """One published table: time of an all-reduce by its bytes, us."""

    name: str
    source: str
    target: str
    card_bandwidth: float | None = None
    """Bytes/s of a network card, if it is not the usual one."""
    cards: int = 8
    group: tuple[int, ...] = ()
    """Devices that take part, if not all."""
    times: Mapping[int, float]


MEASURED: tuple[Measured, ...] = (
    Measured(
        name="8 H100", source="ByteDance-Seed/Triton-distributed, issue 57 (NCCL)", target="h100x8",
        times={
            128: 19.19, KIB: 19.50, 16 * KIB: 20.71, 32 * KIB: 22.65, 64 * KIB: 23.05, 128 * KIB: 23.71,
            256 * KIB: 24.76, 512 * KIB: 25.24, MIB: 32.42, 4 * MIB: 59.43, 8 * MIB: 90.51, 16 * MIB: 135.68,
        },
    ),
    Measured(
        name="8 H100, large", source="NVIDIA/nccl, issue 1455 (ring; in the switch)", target="h100x8",
        times={2 * GIB - 1: 2 * GIB * 1.75 / 367e9 * 1e6, 2 * GIB: 2 * GIB * 1.75 / 480e9 * 1e6},
    ),
    Measured(
        name="16 H20 in 2 nodes", source="NVIDIA/nccl, issue 1244", target="h20x16",
        times={
            MIB: 121.8, 2 * MIB: 129.8, 4 * MIB: 127.6, 8 * MIB: 146.5, 16 * MIB: 203.0, 32 * MIB: 298.5,
            64 * MIB: 467.9, 128 * MIB: 1108.0, 256 * MIB: 2055.4, 512 * MIB: 3218.6,
        },
    ),
    Measured(
        name="8 GH200 in 2 nodes", source="eth-cscs/cscs-docs, image-nccl-tests.md (Slingshot)", target="h100x16",
        card_bandwidth=25e9, group=(0, 1, 2, 3, 8, 9, 10, 11),
        times={
            128: 18.86, KIB: 20.35, 16 * KIB: 37.29, 64 * KIB: 61.03, 256 * KIB: 127.0, MIB: 164.3, 4 * MIB: 292.7,
            8 * MIB: 344.5, 16 * MIB: 461.7, 32 * MIB: 686.5, 64 * MIB: 1090.5, 128 * MIB: 1916.4,
        },
    ),
    Measured(
        name="72 GB200", source="coreweave/nccl-tests, pull request 43", target="gb200x72",
        times={512 * MIB: 1806.7, GIB: 3108.8, 2 * GIB: 5589.1, 4 * GIB: 10094, 8 * GIB: 20299},
    ),
    Measured(
        name="16 H100 in 2 nodes, TCPX", source="lessizzmore/create-a3mega-ztan-fork, ztan-NCCL-test-result",
        target="h100x16", card_bandwidth=25e9,
        times={
            KIB: 147.1, 64 * KIB: 159.4, MIB: 203.2, 4 * MIB: 364.6, 16 * MIB: 977.6, 64 * MIB: 1261.6,
            256 * MIB: 2360.9, GIB: 6759.0, 4 * GIB: 24361, 8 * GIB: 47535,
        },
    ),
    Measured(
        name="16 A100 in 2 nodes, EFA", source="AWS, Deep Learning AMI, EFA tutorial (p4d.24xlarge)",
        target="a100x16", card_bandwidth=12.5e9, cards=4,
        times={
            KIB: 179.2, 64 * KIB: 238.6, MIB: 408.7, 8 * MIB: 1059.5, 64 * MIB: 2446.7, 256 * MIB: 7351.9, GIB: 26416,
        },
    ),
)  # fmt: skip
"""Sizes of the first table but 2 MiB, which took 291 us and is an outlier of that run."""


def target_of(measured: Measured) -> Target:
    """The machine of a table."""
    target = parse_target(measured.target, None)
    if measured.card_bandwidth is not None:
        network = Network(
            link="as published", cards=measured.cards, card_bandwidth=measured.card_bandwidth, source=measured.source
        )
        target = replace(target, network=network)
    return target


def places(measured: Measured) -> list[tuple[int, float, float]]:
    """For each size: bytes, measured over the low end, measured over the high end."""
    target = target_of(measured)
    factors, group = factors_for(target), measured.group or tuple(range(target.count))
    found = []
    for size, time in sorted(measured.times.items()):
        span = exchange_range(Exchange(kind="all-reduce", bytes=size, group=group), target, factors).time
        found.append((size, time * US / span.low, time * US / span.high))
    return found


def main() -> None:
    """Print a row for each table."""
    print("| devices | source | sizes | inside | measured / low | measured / high |\n|-|-|-:|-:|-|-|")
    for measured in MEASURED:
        rows = places(measured)
        inside = sum(low >= 1 and high <= 1 for _, low, high in rows)
        lows, highs = [low for _, low, _ in rows], [high for _, _, high in rows]
        print(
            f"| {measured.name} | {measured.source} | {len(rows)} | {inside} | {min(lows):.1f} to {max(lows):.1f} "
            f"| {min(highs):.2f} to {max(highs):.2f} |"
        )


if __name__ == "__main__":
    main()
