"""Logs of the torch that is installed: what they say equals tlparse and inductor's own provenance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfscope.analyzers.readers.kineto import reader as kineto_reader
from perfscope.analyzers.readers.torch_log.reader import read_log
from perfscope.analyzers.readers.torch_log.records import Reader, places_of
from perfscope.model.compile_log import CompileLog
from tests.readers.torch_log.logs import record, tlparse
from tests.readers.torch_log.test_corpus import agrees

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(
        tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
        reason="older torch says less in its log; its forms are in test_torch_log_breaks",
    ),
]

DYNAMO = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(8, 8)
    def forward(self, x):
        y = torch.relu(self.a(x))
        print("in the middle")  # break
        z = y * 2
        if z.sum() > 0:  # branch
            z = z + 1
        return z.mean()

model = torch.compile(Model(), backend="aot_eager")
for rows in (4, 4, 6, 10):
    model(torch.randn(rows, 8)).backward()

@torch.compile(backend="aot_eager")
def skipped(x):
    for turn in range(2):
        print(turn)  # loop
        x = x + 1
    return x
skipped(torch.ones(3))

torch._dynamo.config.recompile_limit = 2
@torch.compile(backend="eager", dynamic=False)
def churn(x):
    return x.sin()
for size in range(2, 7):
    churn(torch.ones(size))

torch._dynamo.reset()
@torch.compile(backend="eager")
def scaled(x, name, factor):
    return x * factor if name.startswith("d") else x
for name, factor in (("double", 2.0), ("single", 3.0)):
    scaled(torch.ones(3), name, factor)
"""

INDUCTOR = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
    def forward(self, x):
        h = torch.nn.functional.silu(self.a(x))
        top, _ = torch.topk(self.b(h), 4, dim=-1)
        return torch.softmax(top, -1).mean()

model = torch.compile(Model())
model(torch.randn(8, 16)).backward()
"""

PROFILED = """
import torch

model = torch.compile(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), backend="aot_eager")
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    model(torch.randn(4, 8)).sum().backward()
    model(torch.randn(6, 8)).sum().backward()
profiler.export_chrome_trace("trace.json")
"""


@pytest.fixture(scope="module")
def dynamo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(DYNAMO, tmp_path_factory.mktemp("dynamo"))


@pytest.fixture(scope="module")
def inductor(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs with one cache: cold, then warm."""
    folder = tmp_path_factory.mktemp("inductor")
    cold = record(INDUCTOR, folder, INDUCTOR_PROVENANCE="1")
    kept = cold.rename(folder / cold.name)
    return kept, record(INDUCTOR, folder, INDUCTOR_PROVENANCE="1")


def line_of(program: str, mark: str) -> int:
    return next(number for number, line in enumerate(program.splitlines(), start=1) if mark in line)


def test_breaks_recompilations_and_failures_equal_tlparse(dynamo: Path, tmp_path: Path) -> None:
    log = read_log(dynamo)
    agrees(log, tlparse(dynamo, tmp_path))
    assert (log.corrupt, log.unknown) == (0, {})
    assert log.torch_version == torch.__version__


def test_breaks_name_the_users_lines(dynamo: Path) -> None:
    log = read_log(dynamo)
    whole = {(one.place.line, one.skipped_frame) for one in log.breaks if one.place}
    assert whole == {
        (line_of(DYNAMO, "# break"), False),
        (line_of(DYNAMO, "# branch"), False),
        (line_of(DYNAMO, "# loop"), True),
        (line_of(DYNAMO, "def churn") - 1, True),  # the frame begins with its decorator
    }
    assert all(one.doc_id and one.time_ns for one in log.breaks)
    spans = [one for one in log.phases if one.name == "dynamo"]
    for one in log.breaks:  # prefixes of records are good to a millisecond
        near = (one.time_ns or 0) - 2_000_000, (one.time_ns or 0) + 2_000_000
        assert any(
            span.compile_id == one.compile_id and span.start_ns < near[1] and near[0] < span.end_ns for span in spans
        )


def test_recompilations_have_their_guard_and_no_strings_of_the_program(dynamo: Path) -> None:
    log = read_log(dynamo)
    reasons = [(one.function, one.reasons[0]) for one in log.recompiles]
    assert ("forward", "tensor 'x' size mismatch at index 0. expected 4, actual 6") in reasons
    assert [function for function, _ in reasons].count("churn") == 2
    assert any(function == "scaled" and "'...'" in reason for function, reason in reasons)
    assert "double" not in repr(log.recompiles)  # the value; the line that compares it is shown
    dynamic = [one for one in log.compiles if one.symbols]
    assert any("size()[0]" in source for one in dynamic for source in one.symbols.values())


def payloads(path: Path, name: str) -> list[tuple[str | None, Any]]:
    records = Reader(path.read_bytes())
    return [(one.compile_id, json.loads(one.payload())) for one in records if one.name == name]


def test_kernels_to_nodes_and_lines_equal_inductors_provenance(inductor: tuple[Path, Path]) -> None:
    log = read_log(inductor[0])
    mapping = payloads(inductor[0], "inductor_provenance_tracking_node_mappings")
    stacks = payloads(inductor[0], "inductor_provenance_tracking_kernel_stack_traces")
    assert len(mapping) == len(stacks) == 2
    for direction, (_, said), (_, lines) in zip(("forward", "backward"), mapping, stacks, strict=True):
        ours = {one.handle: one for one in log.kernels if one.direction == direction}
        # torch does not log the nodes of a backward that is compiled on its own, when the first one runs
        nodes_of = said.get("cppCodeToPost", {})
        assert {name: set(one.nodes) for name, one in ours.items() if one.nodes} == {
            name: set(nodes) for name, nodes in nodes_of.items()
        }
        assert bool(nodes_of) == (direction == "forward")
        assert ours.keys() == lines.keys()
        for name, one in ours.items():
            assert {place.line for place in one.places} == {places_of(stack)[-1].line for stack in lines[name]}
        graph = next(one for one in log.graphs if one.direction == direction)
        of_graph = {node.name: node for node in graph.nodes}
        for one in ours.values():  # the lines in the graph's comments are the same
            drawn = {of_graph[node].place.line for node in one.nodes if of_graph[node].place}  # type: ignore[union-attr]
            assert not one.nodes or drawn == {place.line for place in one.places}
            assert not one.nodes or set(one.ops) == {of_graph[node].op for node in one.nodes}
    assert {one.places[0].line for one in log.kernels if one.name == "torch.ops.aten.topk.default"} == {
        line_of(INDUCTOR, "torch.topk")
    }


def test_a_warm_cache_says_the_same_and_that_it_was_hit(inductor: tuple[Path, Path], tmp_path: Path) -> None:
    cold, warm = map(read_log, inductor)
    for log, path in ((cold, inductor[0]), (warm, inductor[1])):
        folder = tmp_path / path.stem
        folder.mkdir()
        agrees(log, tlparse(path, folder))
    assert [one.caches for one in cold.compiles] == [
        {"fx_graph": "miss", "fx_graph_backward": "miss", "aotautograd": "miss"}
    ]
    assert [one.caches for one in warm.compiles] == [
        {"fx_graph": "hit", "fx_graph_backward": "hit", "aotautograd": "hit"}
    ]
    assert shown(cold) == shown(warm)


def shown(log: CompileLog) -> Any:
    kernels = [(one.handle, one.nodes, one.ops, one.places) for one in log.kernels]
    graphs = [(one.direction, one.nodes, one.inputs, one.outputs, one.recomputed) for one in log.graphs]
    return msgspec.to_builtins((kernels, graphs))


def test_recomputed_nodes_are_those_that_both_passes_define(inductor: tuple[Path, Path]) -> None:
    log = read_log(inductor[0])
    forward, backward = log.graphs
    assert backward.recomputed
    saved = {one.name for one in backward.inputs}
    assert not saved & set(backward.recomputed)  # what is saved is not computed again
    made = {one.name for one in forward.nodes}
    assert any(name in made for name in backward.recomputed)


def test_the_log_and_the_profiler_have_one_clock(tmp_path: Path) -> None:
    """Kineto's times and the log's are both since the epoch: the profiler's spans of the compiler are the log's."""
    log = read_log(record(PROFILED, tmp_path))
    trace = kineto_reader.read(tmp_path / "trace.json")
    slices = trace.rows["slices"]
    starts: dict[str, list[int]] = {}
    for name, start in zip(slices["name"], slices["start_ns"], strict=True):
        starts.setdefault(trace.text(int(name)), []).append(int(start))
    near = 100_000_000  # ns; another clock would be seconds to years away
    for name in ("dynamo", "entire_frame_compile", "backend_compile", "build_guards"):
        logged = sorted(one.start_ns for one in log.phases if one.name == name)
        assert len(logged) == len(starts[name]) == 2
        assert all(abs(ours - theirs) < near for ours, theirs in zip(logged, sorted(starts[name]), strict=True))
    whole = [one for one in log.phases if one.name == "dynamo"]
    for start in starts["Torch-Compiled Region: 0/0"]:  # the compiled frame runs after its compilation ended
        assert start > whole[0].end_ns - near


def test_dtypes_are_torchs() -> None:
    from torch.utils._dtype_abbrs import dtype_abbrs

    from perfscope.analyzers.readers.torch_log.graph_text import _DTYPES

    said = {short: str(dtype).removeprefix("torch.") for dtype, short in dtype_abbrs.items()}
    assert {short: _DTYPES[short] for short in said if short in _DTYPES} == {
        short: name for short, name in said.items() if short in _DTYPES
    }
    assert {"f32", "bf16", "f16", "i64", "b8"} <= said.keys() & _DTYPES.keys()
