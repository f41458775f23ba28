"""Damaged logs: whatever stands in them, they are read as far as they go, or refused in one line."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.readers.torch_log import limits
from perfscope.analyzers.readers.torch_log.build import read as read_bytes
from perfscope.analyzers.readers.torch_trace import read_log, sniff
from perfscope.profiler.errors import DataError
from tests.analyzers.readers.torch_logs import LogText

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


TEXT = full().text().encode()


def test_the_whole_log_is_understood() -> None:
    log = read_bytes(TEXT, "x")
    assert (log.corrupt, log.unknown, log.left_out) == (0, {}, {})
    assert (len(log.breaks), len(log.recompiles), len(log.graphs), len(log.kernels), len(log.phases)) == (1, 1, 1, 1, 1)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(TEXT)))
def test_a_log_cut_anywhere_is_read_as_far_as_it_goes(cut: int) -> None:
    log = read_bytes(TEXT[:cut], "x")
    assert log.corrupt <= 1
    assert log.records <= full_records()
    assert [one.name for one in log.kernels] in ([], ["triton_poi_fused_relu_0"])


def full_records() -> int:
    return read_bytes(TEXT, "x").records


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(TEXT) - 1), st.integers(0, 255)), min_size=1, max_size=12))
def test_flipped_bytes_never_stop_the_reader(flips: list[tuple[int, int]]) -> None:
    data = bytearray(TEXT)
    for at, value in flips:
        data[at] = value
    log = read_bytes(bytes(data), "x")
    assert log.records <= full_records() + len(flips)


@settings(max_examples=200, deadline=None)
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


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    from perfscope.analyzers.readers.torch_log import collect, compiles, phases

    for module, name in ((compiles, "MAX_COMPILES"), (collect, "MAX_COMPILES"), (phases, "MAX_SPANS")):
        monkeypatch.setattr(module, name, 3)
    monkeypatch.setattr(collect, "MAX_KINDS", 3)
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
    assert limits.MAX_COMPILES > 1000
