"""Real programs under capture: steps found each way, passes kept, nothing changed for the program."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.load import load_all, load_path
from perfscope.commands.run import _notebook
from perfscope.model.errors import UsageError
from perfscope.model.trace.tables import MemoryCategory
from perfscope.model.untrusted_text import MASK
from tests.session.programs import LOOP, captured, environment, latest, only, passes, plain, write

pytestmark = pytest.mark.torch


def trace(folder: Path, name: str = "timing", directory: str = "rank00000") -> dict[str, Any]:
    path = folder / "perfscope-runs" / "latest" / directory / f"{name}.pt.trace.json.gz"
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return content


def ranges(content: dict[str, Any], prefix: str) -> list[tuple[str, float, float]]:
    """(name, start, end) in us of the user annotations that begin so, in order."""
    found = [
        (event["name"], event["ts"], event["ts"] + event["dur"])
        for event in content["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith(prefix)
    ]
    return sorted(found, key=lambda item: item[1])


SECRET = "hf_planted0secret0value"


class Looped:
    """An unmodified loop that was run with and without capture."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = write(
            folder,
            LOOP + "model, loss = work(14)\n"
            "print(loss.item().hex(), [float(p.detach().sum()).hex() for p in model.parameters()])\n"
            "print(torch.rand(1).item().hex())\n",
        )
        secrets = ("--hf-token", SECRET, f"--api-key={SECRET}")
        self.plain = plain(self.program, cwd=folder)
        self.captured = captured(self.program, *secrets, cwd=folder, env=environment(HF_TOKEN=SECRET))


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> Looped:
    return Looped(tmp_path_factory.mktemp("looped"))


def test_an_unmodified_loop_is_captured_in_three_passes_and_prints_the_same_numbers(looped: Looped) -> None:
    done = looped.captured
    assert done.returncode == 0, done.stderr
    assert done.stdout == looped.plain.stdout, "bit for bit, the random numbers after it too"
    assert done.stderr.splitlines() == [f"perfscope: run kept in perfscope-runs/{latest(looped.folder).id}"]

    process = only(looped.folder)
    assert process.step_source == "optimizer.step"
    assert process.steps_seen == 14
    assert process.torch_compilations == 0
    states = {name: (item.state, item.steps) for name, item in passes(process).items()}
    assert states == {
        "timing": ("recorded", (2, 5)),
        "structure": ("recorded", (5, 6)),
        "detail": ("recorded", (6, 7)),
    }
    assert len(process.untraced_step_ns) == 6, "steps 8 to 13: step 7 settles after the last pass"
    assert min(process.untraced_step_ns) > 0
    size = 4 * (16 * 16 + 16 + 16 + 1)
    assert process.memory["parameters_bytes"] == process.memory["gradients_bytes"] == size
    assert process.memory["optimizer_state_bytes"] == 2 * size + 4 * 4, "two moments and a step count each"
    for artifact in latest(looped.folder).artifacts(looped.folder / "perfscope-runs" / "latest"):
        assert artifact.path.stat().st_size > 0


def test_tensors_of_both_passes_sum_to_what_the_process_held(looped: Looped) -> None:
    process = only(looped.folder)
    (main,) = load_all(looped.folder / "perfscope-runs" / "latest")
    assert main.detail is not None
    for item in (main, main.detail):
        held = item.rows["tensors"]
        sums = {category: int(held["bytes"][held["category"] == category].sum()) for category in MemoryCategory}
        assert sums[MemoryCategory.PARAMETER] == process.memory["parameters_bytes"] + process.memory["buffers_bytes"]
        assert sums[MemoryCategory.GRADIENT] == process.memory["gradients_bytes"]
        assert sums[MemoryCategory.OPTIMIZER_STATE] == process.memory["optimizer_state_bytes"]
        assert "0.weight" in {item.text(code) for code in held["name"]}
        freed, steps = held["freed_ns"][held["freed_ns"] > 0], item.rows["steps"]
        assert len(freed) == 4, "the gradients of the step before"
        assert steps["start_ns"][0] <= freed.min() <= freed.max() < steps["end_ns"][0], "on the clock of the trace"


def test_the_trace_shows_each_step_exactly_and_the_detail_has_the_users_frames(looped: Looped) -> None:
    timing = trace(looped.folder)
    steps = ranges(timing, "perfscope.step#")
    assert [name for name, _, _ in steps] == ["perfscope.step#2", "perfscope.step#3", "perfscope.step#4"]
    optimizer = ranges(timing, "Optimizer.step#")
    assert len(optimizer) == 3
    for (_, start, end), (_, first, last) in zip(steps, optimizer, strict=True):
        assert start <= first
        assert last <= end, "the optimizer's range lies inside its step"
    assert timing["perfscope"] == {"pass": "timing", "steps": [2, 5], "cut_off": None}
    assert "record_shapes" not in timing
    assert not any(event.get("cat") == "python_function" for event in timing["traceEvents"])

    detail = trace(looped.folder, "detail")
    names = {event["name"] for event in detail["traceEvents"] if event.get("cat") == "python_function"}
    assert any(re.fullmatch(r"train\.py\(\d+\): work", name) for name in names)
    assert any(event.get("args", {}).get("Input Dims") for event in detail["traceEvents"])
    assert any(event.get("name") == "[memory]" for event in detail["traceEvents"])


def test_calls_of_the_detail_pass_have_the_lines_that_ran(looped: Looped) -> None:
    (main,) = load_all(looped.folder / "perfscope-runs" / "latest")
    assert main.detail is not None
    slices, source = main.detail.rows["slices"], (looped.folder / "train.py").read_text().splitlines()
    called = {main.detail.text(int(slices["name"][row])): int(slices["call_line"][row]) for row in range(len(slices))}
    for name in (r"<built-in method randn .*", r"nn\.Module: Sequential_0", r"torch/_tensor\.py\(\d+\): backward"):
        (line,) = (line for text, line in called.items() if re.fullmatch(name, text))
        assert re.search({"<": "randn", "n": "model", "t": "backward"}[name[0]] + r"\(", source[line - 1])


def test_secrets_of_the_environment_and_the_command_are_in_no_file(looped: Looped) -> None:
    files = [path for path in (looped.folder / "perfscope-runs").rglob("*") if path.is_file()]
    assert len(files) >= 5
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        assert SECRET.encode() not in content, path
    assert latest(looped.folder).command == ("train.py", "--hf-token", MASK, f"--api-key={MASK}")


@pytest.mark.slow
def test_light_records_the_timing_pass_alone_on_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "work(9)\n")
    assert captured("--level", "light", "--steps", "5:7", program, cwd=tmp_path).returncode == 0
    process = only(tmp_path)
    assert {name: item.steps for name, item in passes(process).items()} == {"timing": (5, 7)}
    assert len(process.untraced_step_ns) == 3 + 1, "steps 2 to 4 before, 8 after one that settles"


@pytest.mark.slow
def test_deep_records_more_steps_with_shapes(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "work(13)\n")
    assert captured("--level", "deep", "--warmup", "1", program, cwd=tmp_path).returncode == 0
    assert {name: item.steps for name, item in passes(only(tmp_path)).items()} == {
        "timing": (1, 6),
        "structure": (6, 7),
        "detail": (7, 10),
    }
    assert trace(tmp_path)["record_shapes"] == 1


@pytest.mark.slow
def test_perfscope_step_alone_rules_where_it_is_called(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "import perfscope\n" + LOOP + "turns = iter(range(100))\n"
        "work(24, after=lambda: perfscope.step() if next(turns) % 2 else None)\n",
    )
    assert captured(program, cwd=tmp_path).returncode == 0
    process = only(tmp_path)
    assert process.step_source == "perfscope.step"
    assert process.steps_seen == 12
    steps = ranges(trace(tmp_path), "perfscope.step#")
    optimizer = ranges(trace(tmp_path), "Optimizer.step#")
    assert len(steps) == 3
    assert len(optimizer) == 6, "two optimizer steps in each"


@pytest.mark.slow
def test_perfscope_step_as_a_with_statement_holds_only_its_body(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "import perfscope\n" + LOOP + "for turn in range(12):\n"
        "    with perfscope.step():\n        work(1)\n    torch.ones(3).cumsum(0)\n",
    )
    assert captured(program, cwd=tmp_path).returncode == 0
    process = only(tmp_path)
    assert (process.step_source, process.steps_seen) == ("perfscope.step", 12)
    content = trace(tmp_path)
    steps = ranges(content, "perfscope.step#")
    assert [name for name, _, _ in steps] == ["perfscope.step#2", "perfscope.step#3", "perfscope.step#4"]
    between = [event["ts"] for event in content["traceEvents"] if event.get("name") == "aten::cumsum"]
    assert between
    assert not any(start <= at < end for at in between for _, start, end in steps)


@pytest.mark.slow
def test_an_annotation_named_like_a_step_is_found(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "from torch.profiler import record_function\nfor turn in range(12):\n"
        "    with record_function(f'iteration {turn}'):\n        work(2)\n",
    )
    assert captured(program, cwd=tmp_path).returncode == 0
    process = only(tmp_path)
    assert (process.step_source, process.steps_seen) == ("annotation iteration", 12)
    mine = ranges(trace(tmp_path), "perfscope.step#")
    theirs = ranges(trace(tmp_path), "iteration ")
    assert [name for name, _, _ in theirs] == ["iteration 2", "iteration 3", "iteration 4"]
    for (_, start, end), (_, first, last) in zip(mine, theirs, strict=True):
        assert start <= first <= last <= end


@pytest.mark.slow
def test_the_programs_own_profiler_gives_the_steps_and_is_not_disturbed(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "from torch.profiler import ProfilerActivity, profile, schedule\n"
        "with profile(activities=[ProfilerActivity.CPU],\n"
        "             schedule=schedule(wait=4, warmup=1, active=2, repeat=1)) as prof:\n"
        "    work(20, after=prof.step)\n"
        "print(sorted({e.key for e in prof.key_averages() if e.key.startswith('Optimizer.step')}))\n",
    )
    bare = plain(program, cwd=tmp_path)
    done = captured(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout
    assert "AdamW" in done.stdout
    process = only(tmp_path)
    assert process.step_source == "torch.profiler"
    assert {capture.state for capture in process.captures} == {"recorded"}
    steps = passes(process)["timing"].steps
    assert steps is not None
    assert steps[0] >= 7, "the profiler of the program recorded steps 5 and 6 and warmed up before"


@pytest.mark.slow
def test_a_program_without_steps_says_so_and_whole_captures_it(tmp_path: Path) -> None:
    program = write(tmp_path, "import torch\nprint(torch.ones(3).sum().item())\n")
    done = captured(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "3.0\n")
    assert "no steps were found" in done.stderr
    assert "--whole" in done.stderr
    assert not (tmp_path / "perfscope-runs").exists()

    assert captured("--whole", program, cwd=tmp_path).returncode == 0
    process = only(tmp_path)
    assert (process.step_source, process.steps_seen) == ("whole program", 1)
    assert passes(process)["timing"].steps == (0, 1)
    assert [name for name, _, _ in ranges(trace(tmp_path), "perfscope.step#")] == ["perfscope.step#0"]
    assert any(event.get("name") == "aten::sum" for event in trace(tmp_path)["traceEvents"])


def test_a_program_without_torch_says_so(tmp_path: Path) -> None:
    program = write(tmp_path, "print('hello')\n")
    done = captured(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "imported torch" in done.stderr


@pytest.mark.slow
def test_a_program_that_ends_in_a_pass_keeps_its_complete_steps(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "work(4)\n")
    assert captured(program, cwd=tmp_path).returncode == 0
    found = passes(only(tmp_path))
    assert (found["timing"].state, found["timing"].steps) == ("recorded", (2, 4))
    assert "after 2 of the 3 steps" in str(found["timing"].reason)
    assert found["detail"].state == "missing"
    assert trace(tmp_path)["perfscope"] == {"pass": "timing", "steps": [2, 4], "cut_off": 4}
    (read,) = load_all(tmp_path / "perfscope-runs" / "latest")
    assert read.steps["number"].tolist() == [2, 3], "the step that was cut off is none"


@pytest.mark.slow
def test_a_program_that_raises_keeps_its_captures_its_traceback_and_its_code(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "work(8)\nraise RuntimeError('planted')\n")
    bare = plain(program, cwd=tmp_path)
    done = captured(program, cwd=tmp_path)
    assert done.returncode == bare.returncode == 1
    assert bare.stderr in done.stderr
    run = latest(tmp_path)
    assert (run.state, run.exit_code) == ("finished", 1)
    assert {capture.state for capture in run.processes[0].captures} == {"recorded"}


def test_two_ranks_under_torchrun_write_a_directory_each(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "model, _ = work(10, after=lambda: dist.all_reduce(torch.ones(4)))\n"
        "dist.destroy_process_group()\n",
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = captured("--level", "light", "--", *launcher, program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    processes = latest(tmp_path).processes
    assert [process.rank for process in processes] == [0, 1]
    assert [process.world_size for process in processes] == [2, 2]
    for process in processes:
        assert {capture.state for capture in process.captures} == {"recorded"}, process.captures
    first = trace(tmp_path, directory="rank00001")
    assert first["distributedInfo"]["rank"] == 1


@pytest.mark.slow
def test_a_profiler_that_never_stops_leaves_a_reason(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "from torch.profiler import ProfilerActivity, profile\n"
        "with profile(activities=[ProfilerActivity.CPU]) as prof:\n    work(10)\n",
    )
    done = captured(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = passes(only(tmp_path))
    assert found["timing"].state == "missing"
    assert "own torch.profiler was recording" in str(found["timing"].reason)
    assert "timing pass missing" in done.stderr


@pytest.mark.slow
def test_a_profile_function_of_the_program_stays(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "calls = 0\ndef count(frame, event, argument):\n    global calls\n    calls += 1\n"
        "sys.setprofile(count)\nwork(10)\nprint(sys.getprofile() is count)\n",
    )
    done = captured(program, cwd=tmp_path)
    assert done.stdout == "True\n"
    assert "its own profile function" in str(passes(only(tmp_path))["detail"].reason)


@pytest.mark.slow
def test_an_error_of_our_own_never_reaches_the_program(tmp_path: Path) -> None:
    write(
        tmp_path,
        "import torch\nclass Broken:\n    def __init__(self, *a, **k):\n        raise RuntimeError('planted')\n"
        "torch.profiler.profile = Broken\n",
        "breaks.py",
    )
    program = write(tmp_path, "import breaks\n" + LOOP + "work(10)\nprint('done')\n")
    done = captured(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n")
    reason = str(passes(only(tmp_path))["timing"].reason)
    assert "planted" in reason


@pytest.mark.slow
def test_workers_of_a_data_loader_do_not_capture(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "from torch.utils.data import DataLoader\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)\n"
        "class Rows(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n        return 12\n"
        "    def __getitem__(self, row):\n        optimizer.step()\n        return torch.full((2,), float(row))\n"
        "if __name__ == '__main__':\n"
        "    total = 0.0\n"
        "    for epoch in range(6):\n"
        "        for batch in DataLoader(Rows(), batch_size=6, num_workers=2):\n"
        "            total += batch.sum().item()\n            work(1)\n"
        "    print(total)\n",
    )
    bare = plain(program, cwd=tmp_path)
    done = captured(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout
    assert not (tmp_path / "perfscope-runs" / "latest" / "failures.txt").exists()
    process = only(tmp_path)
    assert {capture.state for capture in process.captures} <= {"recorded"}


@pytest.mark.slow
def test_a_compiled_program_has_no_structure_and_says_why(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "import perfscope\n" + LOOP + "from torch.profiler import record_function\n"
        "@torch.compile(backend='eager', fullgraph=True)\ndef compiled(x):\n"
        "    with perfscope.region('inner'), record_function('inner'):\n        return x.sin() + 1\n"
        "work(10, after=lambda: compiled(torch.ones(3)))\nprint('whole graph')\n",
    )
    done = captured(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "whole graph\n"), done.stderr
    found = passes(only(tmp_path))
    assert found["structure"].state == "missing"
    assert "torch.compile" in str(found["structure"].reason)
    assert found["detail"].state == "recorded"


COMPILED_STEPS = """
import sys
import torch

parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=0.1)

def gradients():
    optimizer.zero_grad()
    parameter.square().sum().backward()

def update():
    optimizer.step()

def whole():
    gradients()
    update()

how = sys.argv[1]
compiled = torch.compile({"method": optimizer.step, "function": update, "whole": whole}[how], backend="eager")
for turn in range(14):
    if how != "whole":
        gradients()
    compiled()
print("done", parameter.sum().item().hex())
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["function", "method", "whole"])
def test_steps_that_end_in_compiled_code_are_captured(how: str, tmp_path: Path) -> None:
    program = write(tmp_path, COMPILED_STEPS)
    done = captured(program, how, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, plain(program, how, cwd=tmp_path).stdout), done.stderr
    process = only(tmp_path)
    assert (process.step_source, process.steps_seen) == ("optimizer.step", 14)
    assert passes(process)["timing"].steps == (2, 5)
    assert passes(process)["detail"].state == "recorded"


@pytest.mark.slow
def test_a_mark_in_compiled_code_is_a_step_as_the_call_returns(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "import perfscope\n" + LOOP + "@torch.compile(backend='eager')\ndef compiled(x):\n"
        "    y = x.sin()\n    perfscope.step()\n    return y + 1\n"
        "work(10, after=lambda: compiled(torch.ones(3)))\n",
    )
    done = captured(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    process = only(tmp_path)
    assert (process.step_source, process.steps_seen) == ("perfscope.step", 10)
    assert passes(process)["timing"].state == passes(process)["detail"].state == "recorded"


OVERLAPPING = """
import torch
from torch.profiler import record_function

parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=0.1)
open_ranges = []
for turn in range(14):
    open_ranges.append(record_function(f"epoch {turn} of a long name"))
    open_ranges[-1].__enter__()
    parameter.square().sum().backward()
    if len(open_ranges) > 3:
        open_ranges.pop(0).__exit__(None, None, None)
    optimizer.step()
print("done", len(open_ranges))
"""


@pytest.mark.slow
def test_a_program_with_ranges_over_several_passes_lives(tmp_path: Path) -> None:
    program = write(tmp_path, OVERLAPPING)
    for _ in range(3):
        done = captured(program, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "done 3\n"), done.stderr


FORKS = """
import os
for step in range(12):
    work(1)
    if step == 9:
        child = os.fork()
        if child == 0:
            sys.exit(4)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

CLOSED = """
import os
sys.stdout.close()
sys.stderr.close()
work(14)
"""


def test_a_fork_after_a_capture_ends_with_its_own_code(tmp_path: Path) -> None:
    done = captured(write(tmp_path, LOOP + FORKS), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "child 4" in done.stdout


def test_a_program_without_standard_streams_is_captured(tmp_path: Path) -> None:
    done = captured(write(tmp_path, LOOP + CLOSED), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert passes(only(tmp_path))["timing"].state == "recorded"


CHILD_LOOP = (
    "import torch\n"
    "def train():\n"
    "    parameter = torch.nn.Parameter(torch.ones(4))\n"
    "    optimizer = torch.optim.SGD([parameter], lr=0.1)\n"
    "    for _ in range(14):\n"
    "        optimizer.zero_grad()\n"
    "        parameter.square().sum().backward()\n"
    "        optimizer.step()\n"
    "    print('done')\n"
)
STARTED = {
    "fork": CHILD_LOOP + "import multiprocessing\np = multiprocessing.get_context('fork').Process(target=train)\n"
    "p.start()\np.join()\n",
    "subprocess": "import os, subprocess, sys\n"
    f"subprocess.run([sys.executable, '-c', {CHILD_LOOP + 'train()'!r}], check=True, env=dict(os.environ, OWN='1'))\n",
}
"""Programs whose child has the steps; `tests/field/test_ways_to_start.py` has all ways."""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "subprocess"])
def test_without_following_a_process_that_the_program_starts_is_left_alone(how: str, tmp_path: Path) -> None:
    program = write(tmp_path, STARTED[how])
    done = captured("--no-follow", program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "nothing was captured" in done.stderr


@pytest.mark.slow
def test_a_program_with_steps_is_captured_alone_and_its_children_see_nothing_of_us(tmp_path: Path) -> None:
    look = "import os, sys; print(sorted(name for name in os.environ if name[:9] in ('PERFSCOPE', 'PYTHONPAT')))"
    program = write(
        tmp_path,
        CHILD_LOOP + f"train()\nimport subprocess, sys\nsubprocess.run([sys.executable, '-c', {look!r}], check=True)\n"
        f"subprocess.run([sys.executable, '-c', {CHILD_LOOP + 'train()'!r}], check=True)\n",
    )
    done = captured(program, cwd=tmp_path)
    assert done.stdout == plain(program, cwd=tmp_path).stdout
    assert only(tmp_path).child is False


@pytest.mark.slow
def test_a_notebook_runs_in_its_kernel_and_its_cells_are_named(tmp_path: Path) -> None:
    code = CHILD_LOOP + "train()"
    cells = [
        {"cell_type": "code", "id": name, "metadata": {}, "outputs": [], "execution_count": None, "source": source}
        for name, source in (("a", "2 + 2"), ("b", code))
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    document = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "train.ipynb").write_text(json.dumps(document))
    done = captured(tmp_path / "train.ipynb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "processes that the program started" not in done.stderr
    process = only(tmp_path)
    assert (process.step_source, process.steps_seen) == ("optimizer.step", 14)
    assert json.loads((tmp_path / "train.ipynb").read_text()) == document, "the notebook itself is unchanged"
    executed = json.loads((tmp_path / "train.nbconvert.ipynb").read_text())
    assert executed["cells"][1]["outputs"][0]["text"] == ["done\n"]
    (main,) = load_path(tmp_path / "perfscope-runs").traces
    assert main.op_graph is not None
    assert main.detail is not None
    assert {op.file for op in main.op_graph.ops if op.file} == {"In[2]"}
    assert any(text.startswith("In[2](") for text in main.detail.strings)
    assert [text for text in main.detail.strings if "/ipykernel_" in text] == []


def test_a_notebook_without_what_runs_it_is_a_usage_error_that_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install nbconvert ipykernel"):
        _notebook([str(tmp_path / "train.ipynb")])


@pytest.mark.slow
def test_requests_of_pool_threads_are_steps_of_one_thread(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "import torch\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()\n"
        "def handle(_):\n    with torch.no_grad():\n        return [float(v) for v in net(torch.ones(4, 8)).sum(1)]\n"
        "with ThreadPoolExecutor(2) as pool:\n    print(len(list(pool.map(handle, range(400)))))\n",
    )
    done = captured(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "400\n")
    assert all(line.startswith("perfscope: ") for line in done.stderr.splitlines()), done.stderr
    process = only(tmp_path)
    assert process.step_source == "calls of Sequential"
    assert passes(process)["timing"].state == passes(process)["structure"].state == "recorded"
