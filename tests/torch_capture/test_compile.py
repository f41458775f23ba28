"""The capture of torch.compile: what it keeps, what it leaves alone, and what it does where something is missing."""

from __future__ import annotations

import gzip
import json
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.run import reader as reader
from perfscope.model.capture import CaptureOptions
from perfscope.model.compile_log import CompileLog
from perfscope.model.documents import run_folders
from perfscope.model.trace import Trace
from perfscope.profiler.torch import compat, compile_log
from perfscope.profiler.torch.compile_log import TorchCompileCapture
from tests import warm
from tests.conftest import REPOSITORY
from tests.session.programs import LOOP, captured, environment, latest, only, passes, plain, write

pytestmark = pytest.mark.torch

INDUCTOR = """
import torch
torch.manual_seed(0)

@torch.compile
def hot(x, weight, bias):
    h = torch.nn.functional.layer_norm(x @ weight, (16,)) + bias
    return torch.relu(h).sum(-1).softmax(0)

@torch.compile(backend="eager")
def churning(x, k):
    return x * k

weight, bias = torch.nn.Parameter(torch.randn(16, 16)), torch.nn.Parameter(torch.zeros(16))
optimizer = torch.optim.SGD([weight, bias], lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    loss = (hot(torch.randn(8, 16), weight, bias) * torch.arange(8)).sum()
    loss = churning(loss, step < 9)
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), float(weight.sum()).hex())
"""
"""Compiles one function for C++ in step 0, and another one in steps 0 and 9."""

NO_CODE = INDUCTOR.replace("@torch.compile\n", '@torch.compile(backend="eager")\n')
"""The same without g++: what dynamo logs is the same."""

EAGER = """
import sys
import torch

@torch.compile(backend="eager")
def f(x):
    x = x.sin()
    torch._dynamo.graph_break()
    return x + 1

torch.manual_seed(0)
"""

SECRET = "hf_planted0secret0value"


class Ran:
    """A program that was run under capture."""

    def __init__(self, folder: Path, program: str) -> None:
        self.program = write(folder, program)
        self.environment = environment(TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"), HF_TOKEN=SECRET)
        self.captured = captured(self.program, cwd=folder, env=self.environment)
        self.run = folder / "perfscope-runs" / "latest"
        self.folder = self.run / "rank00000" / "compile"

    def trace(self) -> Trace:
        (trace,) = reader.read(self.run)
        return trace

    def log(self) -> CompileLog:
        log = self.trace().compile_log
        assert log is not None
        return log


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("compiled"), NO_CODE)


@pytest.fixture(scope="module")
def inductor(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("inductor"), INDUCTOR)


def lines(path: Path) -> list[str]:
    """Records of a structured log, payloads left out."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [line for line in content.decode().splitlines() if not line.startswith("\t")]


@pytest.mark.slow
def test_results_are_the_same_to_the_last_bit(inductor: Ran) -> None:
    bare = plain(inductor.program, cwd=inductor.run.parents[1], env=inductor.environment)
    assert inductor.captured.returncode == 0, inductor.captured.stderr
    assert bare.stdout.count("\n") == 12
    assert inductor.captured.stdout == bare.stdout
    files = ["fusion.jsonl", "steps.json", "torch_trace.log.gz"]
    assert sorted(path.name for path in inductor.folder.iterdir()) == files


def test_the_manifest_says_where_the_log_is(ran: Ran) -> None:
    (process,) = run_folders.read(ran.run).processes
    found = passes(process)["compile"]
    assert (found.tool, found.state, found.reason) == ("torch_compile", "recorded", None)
    assert found.artifact == "rank00000/compile/torch_trace.log.gz"


def test_the_log_is_what_torch_writes(ran: Ran) -> None:
    records = lines(ran.folder / "torch_trace.log.gz")
    assert any('"name": "torch_version"' in line for line in records)
    assert sum('"dynamo_start"' in line for line in records) == 3
    assert SECRET not in gzip.decompress((ran.folder / "torch_trace.log.gz").read_bytes()).decode()
    log = ran.log()
    assert (log.corrupt, log.unknown) == (0, {})
    assert [item.function for item in log.compiles] == ["hot", "churning", "churning"]


def test_compilations_know_the_step_of_the_run(ran: Ran) -> None:
    log = ran.log()
    steps = [log.step_at(item.start_ns) for item in log.compiles if item.start_ns is not None]
    assert steps == [0, 0, 9]
    (again,) = log.recompiles
    assert again.time_ns is not None
    assert log.step_at(again.time_ns) == 9


def test_the_log_is_on_the_clock_of_the_trace(ran: Ran) -> None:
    trace, log = ran.trace(), ran.log()
    assert log.clock_offset_ns == 0  # both clocks are the epoch's
    steps = trace.rows["steps"]
    before = [phase for phase in log.phases if phase.compile_id in ("0/0", "1/0")]
    behind = [phase for phase in log.phases if phase.compile_id == "1/1"]
    assert before
    assert behind
    assert max(phase.end_ns for phase in before) < steps["start_ns"].min()
    assert min(phase.start_ns for phase in behind) > steps["end_ns"].max()


@pytest.mark.slow
def test_kernels_have_nodes_and_their_names_are_in_the_trace(inductor: Ran) -> None:
    trace, log = inductor.trace(), inductor.log()
    assert log.has_provenance
    assert log.settings == ("provenance", "cpp_kernel_names")
    kernels = [kernel for kernel in log.kernels if kernel.backend == "cpp" and kernel.direction == "forward"]
    assert kernels
    assert all(kernel.nodes for kernel in kernels)
    names = {trace.text(code) for code in trace.rows["slices"]["name"]}
    for kernel in kernels:
        assert any(name.endswith(kernel.name) for name in names), kernel.name


@pytest.mark.slow
def test_refusals_of_the_scheduler_are_kept_with_their_nodes(inductor: Ran) -> None:
    log = inductor.log()
    assert log.has_refusals
    assert log.scheduled_graphs == 2  # forward and backward
    forward = [refusal for refusal in log.refusals if refusal.direction == "forward"]
    assert {item.compile_id for item in forward} == {"0/0"}
    # The softmax reads the row sums again for its maximum, its exponentials and the division: passes that stay apart.
    softmax = [item for item in forward if "div" in item.second_nodes and "exp" in item.first_nodes]
    assert softmax
    assert all("intermediate nodes" in item.reason for item in softmax)
    assert all(item.shared_bytes is not None and item.shared_bytes >= 8 * 4 for item in softmax)
    assert len({(refusal.first, refusal.second, refusal.reason, refusal.direction) for refusal in log.refusals}) == len(
        log.refusals
    )


@pytest.mark.slow
def test_a_program_that_compiles_nothing_leaves_nothing_and_loads_no_compiler(tmp_path: Path) -> None:
    program = write(
        tmp_path, LOOP + "work(8)\nprint(sorted(name for name in sys.modules if name.startswith('torch._inductor')))\n"
    )
    held = plain(program, cwd=tmp_path)
    done = captured("--level", "light", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == held.stdout
    assert "compile" not in passes(only(tmp_path))
    assert not list(tmp_path.glob("perfscope-runs/latest/rank*/compile"))


LATE = """
from torch._logging import trace_structured

@torch.compile(backend="eager")
def logging(x):
    x = x + 1
    torch._dynamo.graph_break()
    trace_structured("artifact", lambda: {"name": "late", "encoding": "string"}, expect_trace_id=False)
    return x * 2

for _ in range(4):
    logging(torch.ones(3))
"""
"""Compiled code that logs as it runs, where dynamo would compile whom it calls."""


@pytest.mark.slow
def test_the_log_that_the_user_asked_for_is_theirs_and_nothing_of_ours_is_in_it(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    program = write(tmp_path, EAGER + LATE)
    done = captured("--whole", program, cwd=tmp_path, env=environment(TORCH_TRACE=str(theirs)))
    assert done.returncode == 0, done.stderr
    (file,) = theirs.glob("*.log")
    ours = tmp_path / "perfscope-runs/latest/rank00000/compile/torch_trace.log.gz"
    kept = [[line for line in lines(path) if "torch_version" not in line] for path in (file, ours)]
    assert any('"late"' in line for line in kept[0])
    assert kept[0] == kept[1]
    (trace,) = reader.read(tmp_path / "perfscope-runs" / "latest")
    assert trace.compile_log is not None
    files = {item.place.file for item in trace.compile_log.compiles if item.place is not None}
    assert files
    assert not [file for file in files if "perfscope/profiler" in file]


@pytest.mark.slow
def test_what_was_logged_before_a_crash_is_kept(tmp_path: Path) -> None:
    program = write(tmp_path, EAGER + "import os, signal\nf(torch.ones(3))\nos.kill(os.getpid(), signal.SIGKILL)\n")
    captured(program, cwd=tmp_path)
    assert any("but torch.compile's log" in note for note in latest(tmp_path).notes)
    found = passes(only(tmp_path))["compile"]
    assert found.artifact == "rank00000/compile/torch_trace.log"
    (trace,) = reader.read(tmp_path / "perfscope-runs" / "latest")
    assert trace.recorded == {"compile_log"}
    assert trace.compile_log is not None
    assert trace.compile_log.compiles[0].function == "f"
    assert len(trace.compile_log.breaks) == 1


@pytest.mark.slow
def test_a_rank_that_is_known_late_takes_its_files_along(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        EAGER + "import torch.distributed as dist\nf(torch.ones(3))\n"  # compiled before the rank is known
        "dist.init_process_group('fake', rank=3, world_size=4, store=dist.HashStore())\n"
        "parameter = torch.nn.Parameter(torch.ones(3))\noptimizer = torch.optim.SGD([parameter])\n"
        "for _ in range(9):\n    optimizer.zero_grad()\n    f(parameter).sum().backward()\n    optimizer.step()\n",
    )
    fake = "import torch.testing._internal.distributed.fake_pg\n"
    write(tmp_path, (tmp_path / program).read_text().replace("import sys\n", "import sys\n" + fake, 1))
    done = captured("--level", "light", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    process = only(tmp_path)
    assert (process.rank, process.directory) == (3, "rank00003")
    assert passes(process)["compile"].artifact == "rank00003/compile/torch_trace.log.gz"
    assert sorted(path.name for path in (tmp_path / "perfscope-runs/latest").glob("rank*")) == ["rank00003"]


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Callable[[], TorchCompileCapture]]:
    """Begins to listen in this process, whose directory is ``rank00000``."""
    torch = pytest.importorskip("torch")
    torch.compiler.reset()
    made: list[TorchCompileCapture] = []

    def begin() -> TorchCompileCapture:
        place = tmp_path / "rank00000"
        place.mkdir()
        made.append(TorchCompileCapture(CaptureOptions(), place=lambda: place, announce=lambda: None, counts=dict))
        made[0].start()
        return made[0]

    yield begin
    for item in made:
        item.stop()


def compile_something() -> None:
    import torch

    torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.ones(3))


def states(capture: TorchCompileCapture, folder: Path) -> list[tuple[str, str | None]]:
    return [(item.state, item.reason) for item in capture.save(folder / "rank00000", folder, None, last=True)]


def test_a_torch_without_structured_trace_is_said_where_something_was_compiled(
    tmp_path: Path, capture: Callable[[], TorchCompileCapture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("torch._logging._internal.TorchLogsFormatter")
    found = capture()
    monkeypatch.setattr(compat, "has_compiled", lambda: False)
    assert states(found, tmp_path) == []
    monkeypatch.setattr(compat, "has_compiled", lambda: True)
    ((state, reason),) = states(found, tmp_path)
    assert state == "missing"
    assert str(reason).startswith("this torch's structured trace is not known here (ImportError")


def test_an_inductor_that_gives_no_reasons_is_said_and_the_log_is_kept(
    tmp_path: Path, capture: Callable[[], TorchCompileCapture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "inductor_loaded", lambda: True)
    monkeypatch.setattr(compat, "inductor_group", lambda name: None)

    def refuse(refused: object, decided: object) -> None:
        raise AttributeError("it does not say")

    monkeypatch.setattr(compat, "hook_scheduler", refuse)
    found = capture()
    compile_something()
    ((state, reason),) = states(found, tmp_path)
    assert state == "recorded"
    assert "fusion decisions: AttributeError: it does not say" in str(reason)


def test_a_disk_that_takes_nothing_stops_the_log_and_not_the_program(
    tmp_path: Path, capture: Callable[[], TorchCompileCapture]
) -> None:
    found = capture()
    (tmp_path / "rank00000").rmdir()
    compile_something()
    (tmp_path / "rank00000" / "compile").mkdir(parents=True)
    ((state, reason),) = states(found, tmp_path)
    assert state == "missing"
    assert "FileNotFoundError" in str(reason)


@pytest.mark.slow
def test_torch_is_left_as_it_was(tmp_path: Path, capture: Callable[[], TorchCompileCapture]) -> None:
    import torch._inductor.compile_fx
    from torch._inductor import config, scheduler

    def hooked() -> list[Any]:
        return [
            logging.getLogger(compat.TRACE_LOGGER).handlers[-1:],
            scheduler.WhyNoFuse.__call__,
            scheduler.WhyNoFuse.__init__,
            scheduler.Scheduler.codegen,
            config.trace.provenance_tracking_level,
            config.cpp.enable_kernel_profile,
        ]

    compile_something()
    before = hooked()
    found = capture()
    torch.compiler.reset()
    compile_something()
    assert hooked()[1:] != before[1:]
    states(found, tmp_path)
    assert hooked() == before


def test_the_log_ends_at_its_limit_and_says_so(
    tmp_path: Path, capture: Callable[[], TorchCompileCapture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_log, "MAX_TRACE_BYTES", 4000)
    found = capture()
    compile_something()
    ((state, reason),) = states(found, tmp_path)
    assert state == "recorded"
    assert "were dropped" in str(reason)


WORKLOADS = REPOSITORY / "perfscope" / "workloads"
SECONDS = 1200
"""A frame compiled cold eight times takes minutes where g++ has little of the machine."""
RULES = ("graph_break", "eager_fallback", "recompilation", "dynamic_shape_churn")

PROGRAM = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
weight = torch.nn.Parameter(torch.randn(16, 16))
optimizer = torch.optim.SGD([weight], lr=0.01)

@torch.compile(backend="aot_eager")
def branching(x):
    h = torch.relu(x @ weight)
    if h.amax() > 1000:  # breaks
        h = h * 0.5
    return h + 1

@torch.compile(backend="eager")
def looping(x):
    for _ in range(2):
        x = x.sin()
        print("loud", x.abs().amax().item())  # falls back
    return x

@torch.compile(backend="eager", dynamic=True)
def dropping(x, rate):
    return F.dropout(x, p=rate)  # recompiles

@torch.compile(backend="eager", dynamic=False)
def reading(x):  # churns
    return x.cos()

@torch.compile(backend="eager", dynamic=True)
def whole(x, rate):
    h = x
    for _ in range(2):
        h = torch.where(h > rate, h, 0.5 * h)
    return h

for step in range(12):
    optimizer.zero_grad()
    y = reading(looping(branching(torch.randn(8 + step, 16))))
    loss = dropping(y, 0.1 + 0.01 * step).sum() + whole(y, torch.tensor(0.01 * step)).sum()
    loss.backward()
    optimizer.step()
"""
"""Backends that make no code: what dynamo does with the lines is the same, and costs a second."""


def judged(folder: Path, *program: str, **env: str) -> dict[str, list[dict[str, Any]]]:
    """Findings of the four rules by rule; each could be evaluated."""
    command = [sys.executable, "-m", "perfscope", "run", "--no-report", *program]
    ran = warm.run(command, cwd=folder, env=environment(**env), capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stderr
    found = plain("-m", "perfscope", "analyze", "latest", "--format", "json", cwd=folder)
    report = json.loads(found.stdout)
    outcomes = {outcome["rule"]: outcome for outcome in report["outcomes"] if outcome["rule"] in RULES}
    assert sorted(outcomes) == sorted(RULES)
    assert all(outcome["status"] != "abstained" for outcome in outcomes.values())
    return {rule: outcomes[rule]["findings"] for rule in RULES}


def places(findings: dict[str, list[dict[str, Any]]]) -> dict[str, set[tuple[str, int]]]:
    """(name of the file, line) of the findings, by rule; rules without any left out."""
    held: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for rule, found in findings.items():
        held[rule].update((Path(item["where"]["file"]).name, item["where"]["line"]) for item in found)
    return {rule: lines for rule, lines in held.items() if lines}


def line_of(file: Path, text: str) -> int:
    """Number of the only line with ``text``."""
    (number,) = (number for number, line in enumerate(file.read_text().splitlines(), start=1) if text in line)
    return number


@pytest.mark.slow
def test_each_line_is_found_with_its_time_and_the_clean_function_is_not(tmp_path: Path) -> None:
    name = write(tmp_path, PROGRAM)
    found = judged(tmp_path, name)
    lines = {word: line_of(tmp_path / name, f"# {word}") for word in ("breaks", "falls back", "recompiles", "churns")}
    first = line_of(tmp_path / name, "def dropping") - 1  # of a function: its decorator
    assert places(found) == {
        "graph_break": {(name, lines["breaks"])},
        "eager_fallback": {(name, lines["falls back"]), (name, first), (name, lines["churns"] - 1)},
        "recompilation": {(name, lines["recompiles"])},
        "dynamic_shape_churn": {(name, lines["churns"] - 1)},
    }
    timed = {(rule, item["where"]["line"]): item["basis"] for rule, ones in found.items() for item in ones}
    assert [timed["graph_break", lines["breaks"]], timed["eager_fallback", lines["falls back"]]] == ["measured"] * 2
    assert timed["eager_fallback", first] == "structural"  # it is eager since a step that was not recorded
    (again,) = found["recompilation"]
    assert "The number rate changes" in again["detail"]
    (churn,) = found["dynamic_shape_churn"]
    assert "9 sizes of x.size()[0]" in churn["title"]


DEFECTS = {
    "print": {"eager_fallback": ("compile_defects.py", 'print("loudest"')},
    "branch": {"graph_break": ("compile_defects.py", "if x_BLD.abs().amax() > LIMIT")},
    "unsupported": {"eager_fallback": ("compile_defects.py", "x_BLD[x_BLD.mean(-1) > 0]")},
    "float-arg": {
        "recompilation": ("compile_defects.py", "F.dropout(x_BLD, p=rate)"),
        "eager_fallback": ("training.py", "def forward(self, tokens_BL"),
    },
    "shapes": {
        "dynamic_shape_churn": ("training.py", "def forward(self, tokens_BL"),
        "eager_fallback": ("training.py", "def forward(self, tokens_BL"),
    },
}


WORKLOAD = """
import os
import torch

if os.environ["BACKEND"] != "inductor":
    import functools
    torch.compile = functools.partial(torch.compile, backend=os.environ["BACKEND"])
from perfscope.workloads.attention import SIZES, VARIANTS, main
from perfscope.workloads.options import parse
main(parse("", VARIANTS, SIZES))
"""

BACKEND = os.environ.get("PERFSCOPE_TEST_BACKEND", "aot_eager")
"""``inductor`` is what users have, and takes minutes of g++; dynamo does the same in front of either."""

RECOMPILING = ("float-arg", "shapes")
"""Compile in every step: a recording with Python stacks then holds all of dynamo's own calls."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Inductor's cache: defects and twins share graphs."""
    return str(tmp_path_factory.mktemp("inductor"))


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFECTS)
@pytest.mark.parametrize("how", ["defect", "twin"])
def test_workloads(name: str, how: str, cache: str, tmp_path: Path) -> None:
    level = "light" if name in RECOMPILING else "default"
    program = (write(tmp_path, WORKLOAD), "--size", "tiny", "--variant", "sdpa", f"--compile-{how}", name)
    env = {"BACKEND": BACKEND, "TORCHINDUCTOR_CACHE_DIR": cache}
    found = places(judged(tmp_path, "--level", level, *program, **env))
    expected = {rule: {(file, line_of(WORKLOADS / file, text))} for rule, (file, text) in DEFECTS[name].items()}
    assert found == (expected if how == "defect" else {})
