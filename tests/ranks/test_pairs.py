"""Sends and receives put together: by peer and order, who waited for whom, what no peer is recorded for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from perfscope.analyzers.digest import reduce_trace
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.ranks.job import locals_of
from perfscope.analyzers.ranks.matching import Clocks, kinds_of, pair
from perfscope.analyzers.ranks.sets import RankSet, rank_sets
from perfscope.analyzers.readers.kineto.process_groups import peer_in_group
from perfscope.analyzers.readers.load import load_one
from perfscope.analyzers.sections.collectives import collectives_section
from perfscope.dashboards.report import render, text
from perfscope.model.trace import MISSING, Trace
from tests.build import TraceBuilder
from tests.conftest import REPOSITORY
from tests.ranks.build import collective, named

KERNEL = "ncclDevKernel_SendRecv(ncclDevComm*)"
TimedMessage = tuple[str, float, float, int | None]
"""Operation, start and end in us, peer."""


def rank(number: int, messages: Sequence[TimedMessage], *, group: Sequence[int] | None = (0, 1, 2, 3),
         elements: Sequence[int] = (), launched_from: int = 0) -> Trace:  # fmt: skip
    build = TraceBuilder(rank=number, path=f"rank{number}.json")
    build.device(0)
    for index, (operation, start, end, peer) in enumerate(messages):
        if index >= launched_from:
            build.call("cudaLaunchKernel", start - 5, start - 4, correlation=index)
        collective(build, start, end, operation=operation, kernel=KERNEL, ranks=group, stream=20 + index % 2,
                   elements=elements[index] if elements else 1_000_000, correlation=index)  # fmt: skip
        build.tables["collectives"][-1]["peer"] = -1 if peer is None else peer
    return named(build.build(), world=4)


def one_set(*traces: Trace) -> RankSet:
    (found,) = rank_sets(traces)
    return found


def test_the_shorter_side_is_the_transfer_and_the_rest_waits_for_the_other() -> None:
    found = one_set(
        rank(0, [("send", 300, 400, 1), ("send", 1000, 1350, 1)]),
        rank(1, [("recv", 0, 400, 0), ("recv", 1200, 1350, 0)]),
    ).pairing
    assert [(message.core_ns, message.send_wait_ns, message.receive_wait_ns) for message in found.pairs] == [
        (100_000, 0, 300_000), (150_000, 200_000, 0),
    ]  # fmt: skip
    for message in found.pairs:
        assert message.core_ns + message.send_wait_ns == message.send.duration_ns
        assert message.core_ns + message.receive_wait_ns == message.receive.duration_ns
    (kind,) = kinds_of(found)
    assert (kind.source, kind.destination, kind.count, kind.message_bytes) == (0, 1, 2, 2_000_000)
    assert (kind.core_ns, kind.median_core_ns) == (250_000, 125_000)
    assert kind.bandwidth == pytest.approx(2_000_000 / 125e-6)
    assert found.unpaired == 0


def test_order_is_that_of_the_two_ranks_and_not_of_the_group() -> None:
    """Rank 1 receives from 0 and 2 in turn; between it and each of them the order holds."""
    found = one_set(
        rank(0, [("send", 90, 100, 1), ("send", 290, 300, 1)]),
        rank(1, [("recv", 0, 100, 0), ("recv", 100, 200, 2), ("recv", 200, 300, 0)]),
        rank(2, [("send", 150, 200, 1)]),
    ).pairing
    assert [(pair.source, pair.receive.start_ns) for pair in found.pairs] == [(0, 0), (2, 100_000), (0, 200_000)]


def test_a_group_of_two_needs_no_peer() -> None:
    found = one_set(
        rank(0, [("send", 300, 400, None)], group=(0, 3)), rank(3, [("recv", 0, 400, None)], group=(0, 3))
    ).pairing
    assert [(pair.source, pair.destination) for pair in found.pairs] == [(0, 3)]


@pytest.mark.parametrize("group", [(0, 1, 2, 3), None])
def test_where_no_peer_is_recorded_it_is_said_and_not_guessed(group: Sequence[int] | None) -> None:
    found = one_set(rank(0, [("send", 300, 400, None)], group=group), rank(1, [("recv", 0, 400, None)], group=group))
    assert (found.pairing.pairs, found.pairing.without_peer, found.pairing.unpaired) == ((), 2, 2)
    assert any(note.startswith("2 sends and receives have an unknown peer") for note in found.notes)
    judged = analyze([member.trace for member in found.job.members], ["straggler"])
    assert judged.collectives.jobs[0].unmatched == 2
    assert "2 sends and receives have an unknown peer" in " ".join(render(judged, "text").split())


def test_a_side_that_nobody_recorded_is_counted() -> None:
    found = one_set(rank(0, [("send", 0, 10, 1), ("send", 20, 30, 2)]), rank(1, [("recv", 0, 10, 0)])).pairing
    assert (len(found.pairs), found.alone) == (1, 1)
    assert found.notes == ("1 sends and receives have no other side in these recordings",)


def test_what_was_launched_before_the_capture_began_is_not_the_first() -> None:
    found = one_set(
        rank(0, [("send", 0, 10, 1), ("send", 20, 30, 1)]),
        rank(1, [("recv", -20, -10, 0), ("recv", 0, 10, 0), ("recv", 20, 30, 0)], launched_from=1),
    ).pairing
    assert [pair.receive.start_ns for pair in found.pairs] == [0, 20_000]
    assert found.alone == 1


def test_sizes_move_a_rank_along_and_what_differs_still_is_not_used() -> None:
    sends: list[TimedMessage] = [("send", 100 * index, 100 * index + 10, 1) for index in range(4)]
    receives: list[TimedMessage] = [("recv", 100 * index, 100 * index + 10, 0) for index in range(1, 4)]
    moved = one_set(rank(0, sends, elements=(5, 6, 7, 8)), rank(1, receives, elements=(6, 7, 8))).pairing
    assert [pair.send.elements for pair in moved.pairs] == [6, 7, 8]
    differing = one_set(rank(0, sends[:3], elements=(5, 6, 7)), rank(1, receives, elements=(5, 9, 7))).pairing
    assert (len(differing.pairs), differing.disagreeing) == (2, 2)


def test_a_message_that_was_sent_ahead_has_no_wait() -> None:
    """Buffers took it in: on one clock, the send was over before the receive began."""
    ranks = one_set(rank(0, [("send", 0, 10, 1)]), rank(1, [("recv", 500, 540, 0)]))
    together = Clocks(offset_ns={0: 0, 1: 0}, uncertainty_ns={0: 1_000, 1: 1_000}, unreached=())
    (one,) = pair(ranks.job, together).pairs
    assert (one.ahead, one.send_wait_ns, one.receive_wait_ns) == (True, 0, 0)
    (kind,) = kinds_of(pair(ranks.job, together))
    assert (kind.ahead, kind.core_ns, kind.bandwidth) == (1, 0, None)
    # as far as the clocks tell, it may have been at the same time; and these two clocks nothing ties together
    unsure = replace(together, uncertainty_ns={0: 300_000, 1: 300_000})
    assert [item.ahead for item in (*pair(ranks.job, unsure).pairs, *ranks.pairing.pairs)] == [False, False]


def test_received_before_it_was_sent_is_not_one_message() -> None:
    ranks = one_set(rank(0, [("send", 500, 540, 1)]), rank(1, [("recv", 0, 10, 0)]))
    together = Clocks(offset_ns={0: 0, 1: 0}, uncertainty_ns={0: 1_000, 1: 1_000}, unreached=())
    found = pair(ranks.job, together)
    assert (found.pairs, found.disagreeing) == ((), 2)


def pipeline() -> list[Trace]:
    """Each stage waits for the one before it: 1 ms, 2 ms, 3 ms."""
    traces = []
    for number in range(4):
        messages: list[TimedMessage] = []
        if number:
            messages.append(("recv", 0, 1000.0 * number + 50, number - 1))
        if number < 3:
            messages.append(("send", 1000.0 * (number + 1), 1000.0 * (number + 1) + 50, number + 1))
        traces.append(rank(number, messages))
    return traces


def test_the_section_shows_who_waited_for_whom() -> None:
    (job,) = collectives_section(pipeline()).jobs
    assert (job.matched, job.paired, job.unmatched) == (0, 3, 0)
    assert [(pair.source, pair.destination, pair.receive_wait_ns) for pair in job.pairs] == [
        (2, 3, 3_000_000), (1, 2, 2_000_000), (0, 1, 1_000_000),
    ]  # fmt: skip


def test_slim_traces_say_the_same() -> None:
    assert collectives_section([reduce_trace(trace) for trace in pipeline()]) == collectives_section(pipeline())


def test_reports_show_the_messages() -> None:
    judged = analyze(pipeline(), ["straggler"])
    document = json.loads(render(judged, "json"))
    Draft202012Validator(json.loads((REPOSITORY / "docs" / "report-schema.json").read_text())).validate(document)
    assert document["collectives"]["jobs"][0]["pairs"][0]["receive_wait_ns"] == 3_000_000
    for face in ("text", "markdown", "html"):
        shown = text.render(judged, verbose=True) if face == "text" else render(judged, face)
        assert "3 messages between two ranks paired" in shown
        assert "rank 2 to 3" in shown


def test_the_pipeline_rule_says_which_neighbour_a_stage_waited_for() -> None:
    (finding,) = analyze(pipeline(), ["pipeline_bubble"])["pipeline_bubble"].findings
    assert [(row["rank"], row["mostly_for"], row["wait_ns"]) for row in finding.evidence] == [
        (3, 2, 3_000_000), (2, 1, 2_000_000), (1, 0, 1_000_000), (0, None, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "peer"),
    [
        ({"Collective name": "send", "Dst Rank": 3}, 3), ({"Collective name": "recv", "Src Rank": 1}, 1),
        ({"Collective name": "recv", "Src Rank": 1, "Dst Rank": 0}, 1), ({"Collective name": "send"}, None),
        ({"Collective name": "allreduce", "Src Rank": 1}, None), ({"Collective name": "send", "Dst Rank": "x"}, None),
    ],
)  # fmt: skip
def test_kineto_names_the_peer_of_a_kernel(tmp_path: Path, told: dict[str, Any], peer: int | None) -> None:
    args = {"device": 0, "stream": 20, "correlation": 7, "dtype": "Float", "In msg nelems": 64, "Out msg nelems": 64,
            "Process Group Name": "1", "Process Group Ranks": "[0, 1, 2, 3]", "Group size": 4, **told}  # fmt: skip
    kernel = {"ph": "X", "cat": "kernel", "name": KERNEL, "pid": 0, "tid": 20, "ts": 10.0, "dur": 5.0, "args": args}
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [kernel]}))
    (one,) = load_one(file).fact(locals_of)
    assert one.peer == peer


SECRET = "do-not-read-4711"


def span(category: str, name: str, start: float, length: float, thread: int = 1, inputs: Any = None) -> dict[str, Any]:
    args = {} if inputs is None else {"Concrete Inputs": inputs}
    found = {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": thread, "ts": start, "dur": length}
    return {**found, "args": args}


def message(
    operation: str, start: float, peer: int, thread: int = 1, lasts: float = 100, elements: int = 64
) -> list[dict[str, Any]]:
    """The op and the span that begins in it and ends after it; times in us."""
    op = "c10d::send" if operation == "send" else "c10d::recv_"
    return [
        span("cpu_op", op, start, 8, thread, ["", "", str(peer), "0"]),
        sized(span("user_annotation", f"gloo:{operation}", start + 5, lasts, thread), elements),
    ]


def sized(event: dict[str, Any], elements: int) -> dict[str, Any]:
    return {**event, "args": {**event["args"], "Input Dims": [[elements]], "Input type": ["float"]}}


def kineto_trace(
    folder: Path,
    events: Sequence[dict[str, Any]],
    ranks: Sequence[int] = (0, 1, 2, 3),
    groups: int = 1,
    rank: int = 0,
) -> Trace:
    config = [
        {"pg_name": str(number), "backend_config": "cpu:gloo", "pg_size": len(ranks), "ranks": list(ranks)}
        for number in range(groups)
    ]
    head = {"backend": "gloo", "rank": rank, "world_size": 8, "pg_config": config}
    file = folder / f"rank{rank}.json"
    file.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": head, "traceEvents": list(events)}))
    return load_one(file)


def operations_with_peers(trace: Trace) -> list[tuple[str, int | None]]:
    return [(item.operation, item.peer) for item in trace.fact(locals_of)]


def test_the_op_in_which_a_span_began_tells_its_peer(tmp_path: Path) -> None:
    events = message("recv", 0, 1) + message("send", 200, 3) + message("recv", 400, 2)
    assert operations_with_peers(kineto_trace(tmp_path, events)) == [("recv", 1), ("send", 3), ("recv", 2)]


def test_messages_that_are_under_way_at_once_are_told_apart(tmp_path: Path) -> None:
    """isend, irecv: the spans overlap, but each began in its own op."""
    events = message("send", 0, 1) + message("recv", 10, 2) + message("send", 20, 3)
    assert operations_with_peers(kineto_trace(tmp_path, events)) == [("send", 1), ("recv", 2), ("send", 3)]


def test_threads_are_told_apart(tmp_path: Path) -> None:
    events = message("send", 0, 1, thread=1) + message("send", 2, 3, thread=2)
    assert operations_with_peers(kineto_trace(tmp_path, events)) == [("send", 1), ("send", 3)]


def test_the_receiver_that_comes_late_keeps_the_sender_waiting(tmp_path: Path) -> None:
    """Gloo names no group; the head lists one that runs gloo, and the ops tell the peer by its number in it."""
    sends = [
        event for index in range(4) for event in message("send", 300_000 * index, 1, lasts=250_100, elements=1 << 18)
    ]
    late = [
        event
        for index in range(4)
        for event in message("recv", 300_000 * index + 250_000, 0, lasts=100, elements=1 << 18)
    ]
    traces = [kineto_trace(tmp_path, events, (0, 1), rank=rank) for rank, events in enumerate((sends, late))]
    assert {(item.operation, item.ranks, item.peer) for trace in traces for item in trace.fact(locals_of)} == {
        ("send", (0, 1), 1), ("recv", (0, 1), 0),
    }  # fmt: skip
    (job,) = collectives_section(traces).jobs
    (kind,) = job.pairs
    assert (kind.source, kind.destination, kind.count, kind.message_bytes) == (0, 1, 4, 1 << 20)
    assert (kind.send_wait_ns, kind.receive_wait_ns) == (4 * 250_000_000, 0)
    assert job.unmatched == 0


@pytest.mark.parametrize("ranks", [(4, 5, 6, 7), (7, 4, 6, 5)])
def test_the_number_is_one_of_the_group(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    assert operations_with_peers(kineto_trace(tmp_path, message("send", 0, 2), ranks)) == [("send", ranks[2])]


@pytest.mark.parametrize(("ranks", "groups", "peer"), [((0, 1), 1, 5), ((0, 1, 2), 2, 1), ((), 1, 1), ((0, 1), 0, 1)])
def test_without_the_group_nobody_knows_the_rank(
    tmp_path: Path, ranks: tuple[int, ...], groups: int, peer: int
) -> None:
    """Not in the group; of which of two groups is not recorded; a group without members; no group."""
    (one,) = kineto_trace(tmp_path, message("send", 0, peer), ranks, groups).fact(locals_of)
    assert one.peer is None


def test_a_span_that_no_op_or_another_began_has_no_peer(tmp_path: Path) -> None:
    alone = [span("user_annotation", "gloo:send", 0, 50), *message("recv", 100, 2)]
    late = [span("cpu_op", "c10d::send", 300, 8, 1, ["", "", "1", "0"]), span("user_annotation", "gloo:send", 320, 9)]
    assert operations_with_peers(kineto_trace(tmp_path, [*alone, *late])) == [
        ("send", None),
        ("recv", 2),
        ("send", None),
    ]


def test_two_spans_in_one_op_are_nobody_s(tmp_path: Path) -> None:
    events = [*message("send", 0, 1), span("user_annotation", "gloo:send", 6, 50)]
    assert operations_with_peers(kineto_trace(tmp_path, events)) == [("send", None), ("send", None)]


def test_no_other_concrete_input_is_read(tmp_path: Path) -> None:
    inputs = [SECRET, SECRET, "1", SECRET]
    events = [
        span("cpu_op", "c10d::send", 0, 8, 1, inputs), span("user_annotation", "gloo:send", 5, 100),
        span("cpu_op", "aten::full", 200, 8, 1, [SECRET, SECRET, "1"]),
        span("cpu_op", "c10d::broadcast_", 300, 8, 1, ["", "", "1", "0"]),
        span("user_annotation", "gloo:broadcast", 305, 9),
    ]  # fmt: skip
    trace = kineto_trace(tmp_path, events)
    assert operations_with_peers(trace) == [("send", 1), ("broadcast", None)]
    assert not any(SECRET in text for text in trace.strings)


@pytest.mark.parametrize(
    ("written", "peer"),
    [
        (b'["","","3","0"]', 3), (b'["","",3,0]', 3), (b'["","","-1","0"]', MISSING), (b'["","","x","0"]', MISSING),
        (b'["",""]', MISSING), (b"", MISSING), (b"7", MISSING), (b'["","",[1],"0"]', MISSING), (b'["","","3"', MISSING),
        (b'["","","99999999999999999999","0"]', MISSING), (b"[" * 5000, MISSING),
    ],
)  # fmt: skip
def test_what_is_not_as_torch_writes_it_tells_nothing(written: bytes, peer: int) -> None:
    assert peer_in_group(written) == peer
