"""Counters of links: units, parts that are added, links that are down, lost samples, what is not beside a kernel."""

from __future__ import annotations

import pytest

from perfscope.analyzers.facts.link_counters import link_counters
from perfscope.analyzers.ranks.link_use import has_counters, network_use, nvlink_use
from tests.build import TraceBuilder

USER = "GPU 0: NVLink TX Requests User Data [Throughput %]"
PROTOCOL = "GPU 0: NVLink TX Requests Protocol Data [Throughput %]"
RECEIVED = "GPU 0: NVLink RX Responses User Data [Throughput %]"


def built() -> TraceBuilder:
    """A communication kernel from 1,000 to 2,000 us."""
    build = TraceBuilder()
    build.device(0)
    build.kernel("ncclDevKernel_AllReduce_RING_LL", 1_000, 2_000, communication=True)
    return build


def sampled(build: TraceBuilder, name: str, values: list[float], *, first: float = 100, every: float = 100) -> None:
    for place, value in enumerate(values):
        build.row("counters", time_ns=round((first + every * place) * 1000), name=build.code(name), value=value)


def test_parts_of_a_direction_are_added_and_the_fuller_direction_counts() -> None:
    build = built()
    sampled(build, USER, [40.0] * 25)
    sampled(build, PROTOCOL, [5.0] * 25)
    sampled(build, RECEIVED, [20.0] * 25)
    trace = build.build()
    samples = link_counters(trace).nvlink[0]
    assert samples.values.tolist() == pytest.approx([0.45] * 10)
    assert (samples.starts_ns[0], samples.ends_ns[-1]) == (1_000_000, 2_000_000)
    use = nvlink_use(trace, 0, 1_000_000, 2_000_000)
    assert use is not None
    assert (use.mean, use.peak, use.idle, use.verdict) == (pytest.approx(0.45), pytest.approx(0.45), 0, "partly")


def test_full_and_idle() -> None:
    build = built()
    sampled(build, USER, [0.0] * 10 + [100.0] * 3 + [1.0] * 12)
    trace = build.build()
    first = nvlink_use(trace, 0, 1_000_000, 1_400_000)
    whole = nvlink_use(trace, 0, 1_000_000, 2_000_000)
    assert first is not None
    assert whole is not None
    assert (first.verdict, first.idle) == ("partly", 0.25)
    assert (whole.verdict, whole.idle, whole.peak) == ("idle", 0.7, 1.0)
    build = built()
    sampled(build, USER, [0.0] * 10 + [85.0] * 15)
    use = nvlink_use(build.build(), 0, 1_000_000, 2_000_000)
    assert use is not None
    assert use.verdict == "saturated"


def test_an_old_export_has_one_counter_a_direction() -> None:
    build = built()
    sampled(build, "GPU 0: NVLink TX Throughput", [30.0] * 25)
    assert link_counters(build.build()).nvlink[0].values.tolist() == pytest.approx([0.3] * 10)


@pytest.mark.parametrize("name", [
    "GPU 0: NVLink TX Requests User Data [bytes]", "machine GPU 0: NVLink TX Requests User Data [Throughput %]",
    "GPU 1: NVLink TX Requests User Data [Throughput %]", "GPU 0: SMs Active [Throughput %]",
])  # fmt: skip
def test_other_units_devices_and_metrics_say_nothing_of_its_links(name: str) -> None:
    build = built()
    sampled(build, name, [30.0] * 25)
    assert nvlink_use(build.build(), 0, 1_000_000, 2_000_000) is None


def test_links_that_read_full_all_along_are_down() -> None:
    build = built()
    sampled(build, USER, [100.0] * 25)
    trace = build.build()
    assert not link_counters(trace).nvlink
    assert not has_counters(trace)


def test_lost_samples_are_not_covered() -> None:
    build = built()
    for start in (100, 1_700):
        sampled(build, USER, [50.0] * (11 if start < 1_000 else 8), first=start)
    assert nvlink_use(build.build(), 0, 1_000_000, 2_000_000) is None  # 1,100 to 1,600 us were lost


def test_few_samples_say_nothing() -> None:
    build = built()
    sampled(build, USER, [0.0, 50.0, 50.0, 50.0, 0.0], first=0, every=500)
    assert nvlink_use(build.build(), 0, 1_000_000, 2_000_000) is None


@pytest.mark.parametrize(("unit", "value"), [("bytes/ms", 1e7), ("B/s", 1e10)])
def test_network_cards_are_added_and_held_to_all_of_them(unit: str, value: float) -> None:
    build = built()
    for card in range(2):
        sampled(build, f"NIC {card}: IB: Bytes sent [{unit}]", [value] * 25, first=100 + 10 * card)
        sampled(build, f"NIC {card}: IB: Send waits [ticks/ms]", [4.0] * 25)
    use = network_use(build.build(), 100e9, 1_000_000, 2_000_000)
    assert use is not None
    assert (use.mean, use.network, use.verdict) == (pytest.approx(0.2), True, "partly")
    assert network_use(built().build(), 100e9, 1_000_000, 2_000_000) is None
