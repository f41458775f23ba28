"""Clocks of Perfetto traces: defaults, a sequence's own clocks, and those of the machine."""

from __future__ import annotations

from pathlib import Path

from tests.analyzers.readers.perfetto_traces import (
    BEGIN,
    BOOT,
    END,
    MONOTONIC,
    Made,
    agrees_with_the_engine,
    clocks,
    spans,
)


def test_clocks_of_a_sequence_count_in_their_own_units_and_differences(tmp_path: Path) -> None:
    made = Made().track(1, "a")
    clocks(made, (BOOT, 1_000_000), (64, 500), unit=1000, incremental=True)
    made.packet(sequence_flags=1).trace_packet_defaults.timestamp_clock_id = 64
    made.trace.packet[-1].trace_packet_defaults.track_event_defaults.track_uuid = 1
    for delta, kind, name in ((5, BEGIN, "first"), (10, END, ""), (0, BEGIN, "second"), (2, END, "")):
        event = made.packet(timestamp=delta).track_event
        event.type = kind
        if name:
            event.name = name
    clocks(made, (BOOT, 2_000_000), (64, 1500), unit=1000, incremental=True)
    event = made.packet(timestamp=3).track_event
    event.type, event.name = BEGIN, "third"
    made.packet(timestamp=1).track_event.type = END
    trace = made.read(tmp_path)
    assert spans(trace) == [
        ("first", 1_005_000, 1_015_000), ("second", 1_015_000, 1_017_000), ("third", 2_003_000, 2_004_000),
    ]  # fmt: skip
    agrees_with_the_engine(trace, tmp_path / "t.pftrace")


def test_clocks_of_the_machine_are_joined_by_snapshots(tmp_path: Path) -> None:
    made = Made().track(1, "a")
    clocks(made, (BOOT, 1000), (MONOTONIC, 400))
    clocks(made, (BOOT, 2010), (MONOTONIC, 1400))  # it went on 10 ns faster
    made.slice(1500, 1600, 1, "boot")
    for time, kind in ((1000, BEGIN), (1500, END)):
        event = made.packet(timestamp=time, timestamp_clock_id=MONOTONIC).track_event
        event.type, event.track_uuid, event.name = kind, 2, "monotonic"
    trace = made.read(tmp_path)
    assert spans(trace) == [("boot", 1500, 1600), ("monotonic", 1600, 2110)]


def test_a_clock_that_nothing_relates_to_the_others_is_counted(tmp_path: Path) -> None:
    made = Made().track(1, "a").slice(10, 20, 1, "boot")
    for time, kind in ((1000, BEGIN), (1500, END)):
        event = made.packet(timestamp=time, timestamp_clock_id=70).track_event
        event.type, event.track_uuid = kind, 2
    trace = made.read(tmp_path)
    assert spans(trace) == [("boot", 10, 20)]
    assert trace.source.unplaced == {"events on a clock that no snapshot relates to the others": 2}


def test_one_clock_needs_no_snapshot(tmp_path: Path) -> None:
    made = Made()
    for time, kind in ((1000, BEGIN), (1500, END)):
        event = made.packet(timestamp=time, timestamp_clock_id=MONOTONIC).track_event
        event.type, event.track_uuid, event.name = kind, 2, "m"
    assert spans(made.read(tmp_path)) == [("m", 1000, 1500)]
