"""torch.compile's log as a whole: compilations, phases, times, and what a file of it becomes."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_all, load_path
from perfscope.analyzers.readers.torch_log import records
from perfscope.analyzers.readers.torch_log.reader import NO_COMPILE_ID, read_log, sniff
from perfscope.analyzers.readers.torch_log.reader import read_records as read_bytes
from perfscope.dashboards.report.text import render
from perfscope.model.errors import DataError
from tests.readers.torch_log.logs import LogText, log_of


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
    (trace,) = load_all(path)
    trace.check()
    analysis = analyze([trace])
    assert analysis.findings() == ()
    assert not [outcome.reason for outcome in analysis if "Error" in (outcome.reason or "")]


def test_a_log_without_a_compilation_is_nothing_to_judge_by(tmp_path: Path) -> None:
    path = LogText().artifact("torch_version", {"pytorch_version": "2.13.0"}).write(tmp_path)
    (trace,) = load_all(path)
    assert trace.recorded == frozenset()
    assert any("no compilation in it" in note for note in trace.source.notes)
    assert {outcome.status for outcome in analyze([trace])} == {"abstained"}


def test_text_logs_are_not_taken_for_it(tmp_path: Path) -> None:
    assert not sniff(tmp_path, b"V0921 16:13:20.000000 77 torch/x.py:3] [0/0] Graph break {x}\n")
    assert not sniff(tmp_path, b'{"traceEvents": []}')
    assert sniff(tmp_path, b"\n\n" + LogText().at(0).metrics().text().encode())


@pytest.mark.parametrize(
    ("name", "rank"),
    [("dedicated_log_torch_trace_rank_1_n8zycf07.log", 1), ("copy_of_rank_1.log", 0)],
)
def test_the_name_that_torch_gives_a_log_comes_before_its_records(tmp_path: Path, name: str, rank: int) -> None:
    path = tmp_path / name
    path.write_text("[rank0]:" + LogText().at(0).metrics().text())
    assert read_log(path).rank == rank


def test_the_rank_is_the_file_names_where_records_have_none(tmp_path: Path) -> None:
    path = LogText().at(0).metrics().write(tmp_path, "dedicated_log_torch_trace_rank_12_ab3x.log")
    assert read_log(path).rank == 12


def test_files_below_the_programs_folders_are_named_from_there(tmp_path: Path) -> None:
    stack = (("/u/run/main.py", 9, "<module>"), ("/other/u/run/a.py", 3, "g"), ("/u/run/pkg/a.py", 4, "f"))
    text = LogText().at(0).start(*stack)
    path = text.artifact("recompile_reasons", ["0/0: x == 1  # /u/run/main.py:9"]).write(tmp_path)
    log = read_log(path, ["/u", "/u/run", "not/absolute"])
    assert [one.file for one in log.compiles[0].stack] == ["main.py", "/other/u/run/a.py", "pkg/a.py"]
    assert log.corrupt == 0, "hashes are those of the file"
    assert read_log(path, ["/"]).compiles[0].stack[0].file == "/u/run/main.py", "a program that runs in the root folder"
    assert read_log(path).compiles[0].stack[0].file == "/u/run/main.py"


CODE = """# AOT ID: ['0_forward']
# Topologically Sorted Source Nodes: [y], Original ATen: [aten.relu]
triton_poi_fused_relu_0 = async_compile.triton('triton_poi_fused_relu_0', '''
x = triton_poi_fused_relu_0.run(1)
''', device_str='cuda')
def call(args):
    triton_poi_fused_relu_0.run(buf0, 4, stream=stream0)
"""
GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, primals_1: "f32[4][1]cpu"):
        # File: /u/a.py:5 in f, code: y = x.relu()
        relu: "f32[4][1]cpu" = torch.ops.aten.relu.default(primals_1);  primals_1 = None
        return (relu,)
"""


def full() -> LogText:
    """A log with every kind of record that is read."""
    log = LogText(rank=2)
    log.artifact("torch_version", {"pytorch_version": "2.13.0"})
    log.at(0).event("dynamo", "B", 1000).start(("/u/main.py", 9, "<module>"), ("/u/a.py", 4, "f"))
    log.add("create_symbol", {"symbol": "s27", "source": "L['x'].size()[0]"})
    log.artifact("dynamo_graph_break_reason", "Graph break in user code at /u/a.py:7\nReason: Unsupported: print")
    log.at(0, 0, 1).add("dynamo_output_graph", {"sizes": {}}, "class G")
    log.add("aot_forward_graph", None, GRAPH)
    log.artifact("inductor_post_grad_graph", GRAPH).add("inductor_output_code", {"filename": "/x"}, CODE)
    log.artifact("inductor_provenance_tracking_node_mappings", {"cppCodeToPost": {"triton_poi_fused_relu_0": ["relu"]}})
    log.artifact(
        "inductor_provenance_tracking_kernel_stack_traces",
        {"triton_poi_fused_relu_0": [' File "/u/a.py", line 5, in f\n  y']},
    )
    log.artifact("fx_graph_cache_miss", {"key": "k"}).artifact("triton_kernel_info", {"triton_poi_fused_relu_0": {}})
    log.metrics(entire_frame_compile_time_s=1.5, restart_reasons=["Unsupported: print"])
    log.add("bwd_compilation_metrics", {"duration_us": 70})
    log.at(0, 1).artifact("recompile_reasons", ["0/0: tensor 'x' size mismatch at index 0. expected 8, actual 12"])
    return log.event("dynamo", "E", 9000)


def estimated(ns: float, size: int = 8, *, swapped: bool = False) -> LogText:
    """A compilation with inductor's schedule of collectives and its estimates."""
    names = [f"torch.ops._c10d_functional.{name}.default" for name in ("all_reduce_", "all_gather_into_tensor")]
    names = names[::-1] if swapped else names
    log = LogText(rank=0).at(0).start(("/u/a.py", 4, "f"))
    log.artifact("inductor_collective_schedule", [names[0], "torch.ops._c10d_functional.wait_tensor.default", names[1]])
    output = {"shape": [size, 8], "stride": [8, 1], "dtype": "float16"}
    ops = [{"name": "extern_kernels.mm", "type": "compute", "estimated_runtime_ns": ns, "outputs": [output]}]
    log.artifact("inductor_runtime_and_tensor_meta", {"ops": [*ops, {"name": "wait", "estimated_runtime_ns": 0}]})
    return log.metrics()


def test_the_order_in_which_graphs_ran_is_kept() -> None:
    text = LogText(rank=0).at(0).start(("/u/a.py", 4, "f")).metrics()
    text.artifact("graph_execution", {"graph_execution_order": [{"compile_id": "0/0"}, {"compile_id": "0/0"}]})
    log = log_of(text)
    assert (log.executed, log.left_out) == (("0/0", "0/0"), {})


def test_records_without_content_are_not_corrupt() -> None:
    """torch writes them of graphs that come from its caches."""
    text = LogText(rank=0).at(0).start(("/u/a.py", 4, "f"))
    for name in ("node_mappings", "kernel_stack_traces"):
        text.add("artifact", {"name": f"inductor_provenance_tracking_{name}", "encoding": "json"}, payload="")
    assert len(log_of(text.metrics()).compiles) == 1


def test_calls_of_graphs_without_an_id_have_no_order() -> None:
    text = LogText(rank=0).at(0).start(("/u/a.py", 4, "f")).metrics()
    text.artifact("graph_execution", {"graph_execution_order": [{"compile_id": "0/0"}, {"compile_id": None}]})
    log = log_of(text)
    assert (log.executed, log.left_out) == ((), {NO_COMPILE_ID: 2})


def test_what_inductor_schedules_and_estimates_is_kept() -> None:
    (compilation,) = log_of(estimated(500.5)).compiles
    assert compilation.schedule == (
        "torch.ops._c10d_functional.all_reduce_.default",
        "torch.ops._c10d_functional.all_gather_into_tensor.default",
    )
    assert compilation.estimated_ns == 500.5
    (slower,), (wider,) = (log_of(text).compiles for text in (estimated(900), estimated(500.5, 16)))
    assert slower.tensors == compilation.tensors
    assert wider.tensors != compilation.tensors


def test_ranks_are_laid_side_by_side(tmp_path: Path) -> None:
    def notes(second: LogText) -> str:
        paths = [estimated(7_000_000).write(tmp_path, "dedicated_log_torch_trace_rank_0_x.log")]
        second.envelope["rank"] = 1
        second.lines = [line.replace('"rank": 0', '"rank": 1') for line in second.lines]
        paths.append(second.write(tmp_path, "dedicated_log_torch_trace_rank_1_x.log"))
        return " ".join(render(analyze([load_all(path)[0] for path in paths]), verbose=True).split())

    alike = notes(estimated(7_350_000))
    assert "collectives: 2 calls in the same order on all 2 ranks" in alike
    assert "shapes, strides and dtypes of what the graphs compute are equal on all ranks" in alike
    assert "inductor's own estimate of all graphs: 7.00 ms (rank 0) to 7.35 ms (rank 1); modelled" in alike
    other = notes(estimated(7_000_000, 16, swapped=True))
    assert "collectives: their order differs between ranks" in other
    assert "what the graphs compute differ between ranks" in other


TEXT = full().text().encode()


def test_the_whole_log_is_understood() -> None:
    log = read_bytes(TEXT, "x")
    assert (log.corrupt, log.unknown, log.left_out) == (0, {}, {})
    assert (len(log.breaks), len(log.recompiles), len(log.graphs), len(log.kernels), len(log.phases)) == (1, 1, 1, 1, 1)


@settings(max_examples=75, deadline=None)
@given(st.integers(0, len(TEXT)))
def test_a_log_cut_anywhere_is_read_as_far_as_it_goes(cut: int) -> None:
    log = read_bytes(TEXT[:cut], "x")
    assert log.corrupt <= 1
    assert log.records <= full_records()
    assert [one.name for one in log.kernels] in ([], ["triton_poi_fused_relu_0"])


def full_records() -> int:
    return read_bytes(TEXT, "x").records


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_as_a_payload_or_a_body(noise: bytes) -> None:
    head = (
        b'V0921 16:13:20.000000 77 torch/x.py:3] {"artifact": {"name": "%s"}, "frame_id": 0, "frame_compile_id": 0}\n'
    )
    for name in (
        b"dynamo_graph_break_reason",
        b"recompile_reasons",
        b"inductor_post_grad_graph",
        b"fx_graph_cache_hit",
    ):
        log = read_bytes(head % name + b"\t" + noise.replace(b"\n", b"\n\t"), "x")
        assert log.records + log.corrupt == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    )
)
def test_any_json_as_a_body(body: object) -> None:
    kinds = ("dynamo_start", "compilation_metrics", "str", "create_symbol", "artifact", "chromium_event", "news")
    log = LogText().at(0)
    for kind in kinds:
        log.add(kind, body, "x")
    read = read_bytes(log.text().encode("utf-8", "replace"), "x")
    assert read.records + read.corrupt == len(kinds)


@pytest.mark.parametrize("text", [b"", b"\n\n\n", b"no log\n", b"\t\n\tx", TEXT[:20]])
def test_a_file_without_a_record_is_refused(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(text)
    assert not sniff(path, text)
    with pytest.raises(DataError, match="no intact record"):
        read_log(path)


def test_a_cut_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.log.gz"
    path.write_bytes(gzip.compress(TEXT)[:-40])
    with pytest.raises(DataError, match="is cut off"):
        read_log(path)


def test_gzip_and_windows_line_ends_say_the_same(tmp_path: Path) -> None:
    plain, packed, dos = tmp_path / "a_rank_7.log", tmp_path / "a.log.gz", tmp_path / "a.log"
    plain.write_bytes(TEXT)
    packed.write_bytes(gzip.compress(TEXT))
    dos.write_bytes(TEXT.replace(b"\n", b"\r\n"))
    logs = [read_log(path) for path in (plain, packed, dos)]
    assert {log.corrupt for log in logs} == {0}
    assert logs[0].compiles == logs[1].compiles == logs[2].compiles
    assert logs[0].graphs == logs[1].graphs == logs[2].graphs


def test_deep_json_is_one_damaged_record() -> None:
    deep = "[" * 200_000 + "]" * 200_000
    line = f'V0921 16:13:20.000000 77 torch/x.py:3] {{"dynamo_start": {deep}}}\n'.encode()
    log = read_bytes(TEXT + line, "x")
    assert log.corrupt == 1
    assert log.records == full_records()


def test_a_huge_payload_nobody_needs_is_not_held(tmp_path: Path) -> None:
    import hashlib

    size = 48 << 20
    path = tmp_path / "x.log"
    line = b"a" * 99
    payload = b"\n".join([line] * (size // 100))
    head = {"artifact": {"name": "fx_graph_runnable"}, "has_payload": hashlib.md5(payload).hexdigest()}
    with path.open("wb") as file:
        file.write(TEXT)
        file.write(b"V0921 16:13:20.000000 77 torch/x.py:3] " + json.dumps(head).encode())
        file.write(b"\n\t" + payload.replace(b"\n", b"\n\t") + b"\n")
    del payload
    tracemalloc.start()
    log = read_log(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (log.corrupt, log.records) == (0, full_records() + 1)
    assert peak < 12 << 20


def test_more_than_the_limit_is_counted_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.analyzers.readers.torch_log import compiles
    from perfscope.analyzers.readers.torch_log import reader as torch_log_reader

    for module, name in ((compiles, "MAX_COMPILES"), (torch_log_reader, "MAX_COMPILES"), (compiles, "MAX_SPANS")):
        monkeypatch.setattr(module, name, 3)
    monkeypatch.setattr(torch_log_reader, "MAX_KINDS", 3)
    log = LogText()
    for number in range(6):
        log.at(number).start(("/u/a.py", 4, "f")).event(f"p{number}", "X", 10 * number, dur=5.0).add(f"kind{number}")
        log.artifact("dynamo_graph_break_reason", f"Graph break in user code at /u/a.py:{number}\nReason: no")
    read = read_bytes(log.text().encode(), "x")
    assert (len(read.compiles), len(read.phases), len(read.breaks)) == (3, 3, 3)
    assert read.left_out["phases beyond the limit"] == 3
    assert read.left_out["graph breaks beyond the limit"] == 3
    assert read.left_out["records of compilations beyond the limit"] == 6
    assert read.unknown == {"kind0": 1, "kind1": 1, "kind2": 1, "others": 3}
    assert records.MAX_COMPILES > 1000
