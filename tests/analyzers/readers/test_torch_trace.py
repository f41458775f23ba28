"""torch.compile's log as a whole: compilations, phases, times, and what a file of it becomes."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.load import load, load_path
from perfscope.analyzers.readers.torch_log.build import read as read_bytes
from perfscope.analyzers.readers.torch_trace import read_log, sniff
from tests.analyzers.readers.torch_logs import LogText, log_of


def test_a_compilation_that_never_ended() -> None:
    text = LogText().at(0).event("dynamo", "B", 1000).event("inductor", "B", 1500)
    text.start(("/u/main.py", 9, "<module>"), ("/u/a.py", 4, "f"))
    (found,) = log_of(text).compiles
    assert (found.complete, found.duration_ns, found.function) == (False, None, "f")
    assert [(one.file, one.line) for one in found.stack] == [("/u/main.py", 9), ("/u/a.py", 4)]
    assert log_of(text).left_out == {"phases without their end": 2}


def test_an_id_used_again_after_a_reset_is_another_compilation() -> None:
    text = LogText()
    for function in ("f", "g"):
        text.at(0).start(("/u/a.py", 4, function)).metrics(co_name=function).add(
            "bwd_compilation_metrics", {"duration_us": 5}
        )
    log = log_of(text)
    assert [(one.compile_id, one.function, one.backward_ns) for one in log.compiles] == [
        ("0/0", "f", 5000),
        ("0/0", "g", 5000),
    ]


def test_times_of_old_and_new_metrics_have_one_name() -> None:
    old = LogText().at(0).metrics(entire_frame_compile_time_s=1.5, backend_compile_time_s=1.25, code_gen_time_s=None)
    new = (
        LogText()
        .at(0)
        .metrics(
            dynamo_cumulative_compile_time_us=1_500_000,
            aot_autograd_cumulative_compile_time_us=1_250_000,
            triton_compile_time_us=250_000,
            dynamo_config="{'secret': 'password'}",
        )
    )
    (first,), (second,) = log_of(old).compiles, log_of(new).compiles
    assert first.duration_ns == second.duration_ns == 1_500_000_000
    assert first.seconds_by_phase == {"entire_frame_compile": 1.5, "backend_compile": 1.25}
    assert second.seconds_by_phase == {**first.seconds_by_phase, "triton_compile": 0.25}
    assert second.start_ns == 1_790_000_000_000_000_000
    assert "password" not in repr(second)


def test_phases_nest_where_one_holds_the_other() -> None:
    text = LogText().at(0).event("dynamo", "B", 1000).event("backend", "B", 1200).event("gc", "X", 1250, dur=10.5)
    text.event("other thread", "B", 1300).event("backend", "E", 1400).event("dynamo", "E", 1500)
    text.event("other thread", "E", 1600).event("lost", "E", 1700).event("cache_miss", "i", 1100)
    log = log_of(text)
    shown = [(one.name, one.depth, one.parent) for one in log.phases]
    assert shown == [("dynamo", 0, None), ("backend", 1, 0), ("gc", 2, 1), ("other thread", 0, None)]
    assert log.phases[0].end_ns - log.phases[0].start_ns == 500_000
    assert log.phases[2].end_ns - log.phases[2].start_ns == 10_500
    assert {one.compile_id for one in log.phases} == {"0/0"}
    assert log.left_out == {"ends of phases without their begin": 1}


def test_local_times_become_the_epochs() -> None:
    text = LogText().at(0)
    text.artifact("recompile_reasons", ["0/0: early"])  # before any event told the zone
    text.ms = 999  # 16:13:21.000 local
    text.event("dynamo", "B", 1_000_000)  # 14:13:21 UTC
    text.ms += 500
    text.at(1, 1).artifact("recompile_reasons", ["1/0: late"])
    early, late = log_of(text).recompiles
    assert early.time_ns is None
    assert late.time_ns == 1_790_000_001_501_000_000


def test_compiled_autograd_has_ids_of_its_own() -> None:
    text = LogText(compiled_autograd_id=2).metrics().at(0).metrics()
    assert [one.compile_id for one in log_of(text).compiles] == ["!2", "!2/0/0"]


def test_unknown_kinds_are_counted() -> None:
    log = log_of(LogText().at(0).add("news").add("news").metrics().add("describe_tensor"))
    assert (log.unknown, log.records) == ({"news": 2}, 4)


def test_python_json_that_is_no_json() -> None:
    line = 'V0921 16:13:20.000000 77 torch/x.py:3] {"compilation_metrics": {"co_name": "f\\ud800", "gc_time_us": NaN}, '
    log = read_bytes((line + '"frame_id": 0, "frame_compile_id": 0}\n').encode(), "x")
    assert (log.corrupt, [one.function for one in log.compiles]) == (0, ["f?"])


def test_a_rank_prefix_is_read() -> None:
    log = read_bytes(b"[rank3]:" + LogText().at(0).metrics().text().encode(), "x")
    assert (log.rank, log.corrupt) == (3, 0)


def test_a_folder_of_logs_is_a_trace_for_each(tmp_path: Path) -> None:
    for rank in (1, 0):
        LogText().at(0).metrics().write(tmp_path, f"dedicated_log_torch_trace_rank_{rank}_ab{rank}3.log")
    loaded = load_path(tmp_path)
    assert [trace.source.rank for trace in loaded.traces] == [0, 1]
    assert {trace.source.format for trace in loaded.traces} == {"torch_trace"}
    assert loaded.skipped == ()


def test_every_rule_can_meet_a_log_alone(tmp_path: Path) -> None:
    path = LogText().at(0).start(("/u/a.py", 4, "f")).metrics().write(tmp_path)
    (trace,) = load(path)
    trace.check()
    analysis = analyze([trace])
    assert analysis.findings() == ()
    assert not [outcome.reason for outcome in analysis if "Error" in (outcome.reason or "")]


def test_a_log_without_a_compilation_is_nothing_to_judge_by(tmp_path: Path) -> None:
    path = LogText().artifact("torch_version", {"pytorch_version": "2.13.0"}).write(tmp_path)
    (trace,) = load(path)
    assert trace.recorded == frozenset()
    assert any("no compilation in it" in note for note in trace.source.notes)
    assert {outcome.status for outcome in analyze([trace])} == {"abstained"}


def test_text_logs_are_not_taken_for_it(tmp_path: Path) -> None:
    assert not sniff(tmp_path, b"V0921 16:13:20.000000 77 torch/x.py:3] [0/0] Graph break {x}\n")
    assert not sniff(tmp_path, b'{"traceEvents": []}')
    assert sniff(tmp_path, b"\n\n" + LogText().at(0).metrics().text().encode())


def test_the_rank_is_the_file_names_where_records_have_none(tmp_path: Path) -> None:
    path = LogText().at(0).metrics().write(tmp_path, "dedicated_log_torch_trace_rank_12_ab3x.log")
    assert read_log(path).rank == 12
