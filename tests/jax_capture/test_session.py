"""Real JAX programs under capture: steps found each way, artifacts kept, nothing changed for the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.memory.growth import jax_growth
from perfscope.analyzers.readers.hlo.proto import read as read_program
from perfscope.analyzers.readers.load import load_all, load_one
from perfscope.analyzers.readers.run import memory as _jax_moments
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time.steps import steps_work
from perfscope.profiler.jax import compat
from perfscope.profiler.jax import memory as jax_memory
from perfscope.profiler.jax.memory import MemoryLog
from tests import warm
from tests.conftest import REPOSITORY
from tests.jax_capture.programs import LOOP, PRINT, run_folder
from tests.session.programs import captured, environment, latest, only, passes, plain, write

pytestmark = pytest.mark.jax


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """The records of a file of JSON lines, the first line's facts left out."""
    head, *records = map(json.loads, (run_folder(folder) / "rank00000" / name).read_text().splitlines())
    assert head["records"] == len(records)
    assert head["schema"].startswith("perfscope.jax_")
    return records


def said(stderr: str) -> list[str]:
    """Output of the program; a line printed by XLA 0.6 itself, without TensorFlow, is unavoidable."""
    return [line for line in stderr.splitlines() if "Can't import tensorflow" not in line]


class Looped:
    """An unmodified loop, traced again in its tenth step, that was run with and without capture."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = "weights, loss = work(12, rows=lambda turn: 8 if turn < 9 else 4)\n"
        self.program = write(folder, LOOP + program + PRINT)
        self.plain = plain(self.program, cwd=folder)
        self.captured = captured(self.program, cwd=folder)


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> Looped:
    return Looped(tmp_path_factory.mktemp("looped"))


def test_an_unmodified_loop_is_captured_and_prints_the_same_bits(looped: Looped) -> None:
    done = looped.captured
    assert done.returncode == 0, done.stderr
    assert done.stdout == looped.plain.stdout, "bit for bit"
    assert len(said(done.stderr)) == 1, "nothing of jax's explanations reaches the program's log"
    assert not (run_folder(looped.folder) / "failures.txt").exists()

    process = only(looped.folder)
    assert process.step_source == "calls of train_step"
    assert process.steps_seen == 12
    assert process.packages.keys() == {"jax", "jaxlib"}
    states = {name: (item.state, item.steps) for name, item in passes(process).items()}
    assert states == {
        "timing": ("recorded", (2, 5)),
        "events": ("recorded", None),
        "syncs": ("recorded", None),
        "memory": ("recorded", None),
        "hlo": ("recorded", None),
    }
    assert len(process.untraced_step_ns) == 4, "7 to 9 and 11: step 5 settles, 6 and 10 follow a wait for all work"
    assert process.memory["live_arrays_bytes"] >= 3 * 16 * 16 * 4


def test_the_trace_opens_with_its_steps_and_lies_where_tensorboard_looks(looped: Looped) -> None:
    folder = run_folder(looped.folder) / "rank00000"
    (shown,) = folder.glob("plugins/profile/*/*.xplane.pb")
    assert shown.read_bytes() == (folder / "timing.xplane.pb").read_bytes()
    trace = load_all(run_folder(looped.folder))[0]
    assert list(trace.steps["number"]) == [2, 3, 4], "the step that the stop cut off is not among them"
    assert "jit_train_step" in {module.name for module in trace.hlo}
    modules = set(trace.frame("hlo_ops")["module"])
    assert any("train_step" in str(name) for name in modules), "ops of the step were recorded"
    growth = trace.fact(jax_growth)
    assert growth is not None
    assert growth.bytes_before > 0
    assert growth.grown_bytes <= 0, "the loop keeps nothing"


@pytest.mark.slow
def test_programs_are_kept_with_their_buffers_also_those_that_were_freed(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "@jax.jit\ndef forgotten(x):\n    return x * 3 + 1\n"
        "forgotten(jnp.ones(5))\ndel forgotten\njax.clear_caches()\nwork(8)\n"
        "del train_step\njax.clear_caches()\n",  # what is freed when the program ends stays
    )
    done = captured(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = run_folder(tmp_path) / "rank00000" / "hlo"
    (step,) = folder.glob("jit_train_step.*.hlo.pb")
    (module,) = read_program(step).hlo
    assert module.buffer_assignment is not None
    assert module.buffer_assignment.heap_traces or module.buffer_assignment.allocations
    if compat.private_apis()["compiled modules"]:
        (freed,) = folder.glob("jit_forgotten.*.compiled.hlo.pb")
        assert read_program(freed).hlo[0].name == "jit_forgotten"


def test_a_retrace_is_kept_with_its_reason_line_and_step(looped: Looped) -> None:
    events = lines(looped.folder, "events.jsonl")
    (retrace,) = [event for event in events if event["kind"] == "retrace" and event["function"] == "train_step"]
    assert "f32[4,16]" in retrace["reason"]
    assert "f32[8,16]" in retrace["reason"]
    assert retrace["step"] == 9
    assert (retrace["file"], retrace["defined_file"]) == ("train.py", "train.py")
    source = (looped.folder / "train.py").read_text().splitlines()
    assert "train_step(weights, x)" in source[retrace["line"] - 1]
    assert source[retrace["defined_line"] - 1] in ("@jax.jit", "def train_step(weights, x):")
    compiled = [event for event in events if event["kind"] == "compile" and event.get("step") == 9]
    assert compiled
    assert all(event["duration_ns"] > 0 and event["file"] == "train.py" for event in compiled)


def test_programs_name_their_files_as_the_log_of_compilations_does(looped: Looped) -> None:
    (main,) = load_all(looped.folder / "perfscope-runs" / "latest")
    files = {item.file for program in main.hlo for _, item in program.instructions() if item.file is not None}
    assert "train.py" in files
    assert not any(file.startswith(str(looped.folder)) for file in (*files, *main.strings))


@pytest.mark.slow
def test_a_host_sync_is_named_by_its_line_and_told_from_a_ready_read(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "import jax\nimport jax.numpy as jnp\n"
        "@jax.jit\ndef slow(x):\n"
        "    return jax.lax.fori_loop(0, 200, lambda at, x: jnp.tanh(x @ x), x).sum()\n"
        "def log(loss):\n    float(loss)\n    str(loss)\n"
        "for turn in range(9):\n    log(slow(jnp.full((200, 200), turn / 9)))\n",
    )
    assert captured(program, cwd=tmp_path).returncode == 0
    syncs = lines(tmp_path, "syncs.jsonl")
    assert {sync["call"] for sync in syncs} == {"float", "str"}, "reads inside a read are one, and ours are none"
    waits = [sync for sync in syncs if sync["call"] == "float"]
    assert {(sync["file"], sync["line"], sync["function"]) for sync in waits} == {("train.py", 7, "log")}
    assert [sync["step"] for sync in waits] == list(range(2, 10))
    assert {sync["traced"] for sync in waits} == {True, False}
    disturbed = [sync["step"] for sync in waits if sync.get("disturbed")]
    assert disturbed == [2, 5, 6], "we waited before and behind the pass, and before the window of timed steps"
    assert not any(sync["ready"] for sync in waits if "disturbed" not in sync)
    assert all(sync["ready"] for sync in syncs if sync["call"] == "str")


@pytest.mark.slow
def test_perfscope_step_alone_rules(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "import perfscope\n" + LOOP + "work(16, after=lambda turn, loss: perfscope.step() if turn % 2 else None)\n",
    )
    assert captured(program, cwd=tmp_path).returncode == 0
    process = only(tmp_path)
    assert (process.step_source, process.steps_seen) == ("perfscope.step", 8)
    assert passes(process)["timing"].steps == (2, 5)


@pytest.mark.slow
def test_what_came_before_the_programs_own_steps_is_in_none_of_them(tmp_path: Path) -> None:
    # calls of the function are taken for steps until perfscope.step() is called
    after = "lambda turn, loss: (float(loss), perfscope.step() if turn % 6 == 5 else None)"
    program = write(tmp_path, "import perfscope\n" + LOOP + f"work(48, after={after})\n")
    assert captured(program, cwd=tmp_path).returncode == 0
    assert only(tmp_path).step_source == "perfscope.step"
    trace = load_one(run_folder(tmp_path))
    reads = Counter(read.step for read in trace.host_reads if read.step is not None)
    assert reads
    assert set(reads.values()) == {6}
    steps = {
        int(row[0]): (row[1], row[2]) for row in trace.steps[["number", "start_ns", "end_ns"]].itertuples(index=False)
    }
    for read in trace.host_reads:
        if read.step in steps:
            assert steps[read.step][0] <= read.begin_ns <= steps[read.step][1]


@pytest.mark.slow
def test_a_step_annotation_of_the_programs_own_is_the_step(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "key = jax.random.key(0)\nweights = [jnp.ones((16, 16))]\n"
        "for turn in range(9):\n    with jax.profiler.StepTraceAnnotation('train', step_num=1000 + turn):\n"
        "        weights, loss = train_step(weights, jnp.ones((8, 16)))\n",
    )
    assert captured(program, cwd=tmp_path).returncode == 0
    process = only(tmp_path)
    assert (process.step_source, process.steps_seen) == ("StepTraceAnnotation train", 9)
    trace = load_all(run_folder(tmp_path))[0]
    assert list(trace.steps["number"]) == [1002, 1003, 1004], "numbered as the program numbers them"


@pytest.mark.slow
def test_an_initialiser_that_is_jitted_is_not_the_loop(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "@jax.jit\ndef initial(key):\n    return jax.random.normal(key, (4, 4))\n"
        "for at in range(5):\n    initial(jax.random.key(at))\nwork(14)\n",
    )
    assert captured(program, cwd=tmp_path).returncode == 0
    process = only(tmp_path)
    assert process.step_source == "calls of train_step"
    assert passes(process)["timing"].state == "recorded"
    assert len(list((run_folder(tmp_path) / "rank00000").glob("plugins/profile/*"))) == 1
    assert not (run_folder(tmp_path) / "failures.txt").exists()


@pytest.mark.slow
def test_a_function_that_retraces_in_each_step_still_has_steps(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "work(8, rows=lambda turn: 4 + turn)\n")
    assert captured(program, cwd=tmp_path).returncode == 0
    assert only(tmp_path).steps_seen == 8
    reasons = [event for event in lines(tmp_path, "events.jsonl") if event["kind"] == "retrace"]
    assert sum(event["function"] == "train_step" for event in reasons) == 7


@pytest.mark.slow
def test_the_whole_program_is_one_step(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "weights, loss = work(4)\n" + PRINT)
    done = captured("--whole", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    process = only(tmp_path)
    assert process.step_source == "whole program"
    assert passes(process)["timing"].steps == (0, 1)


@pytest.mark.slow
def test_of_a_whole_program_that_runs_long_two_seconds_are_recorded(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        "import threading, time\nimport jax\nimport jax.numpy as jnp\n"
        "def wait(turns):\n"
        "    time.sleep(0.05)\n"
        "    while turns == 24 and 'perfscope-limit' in {one.name for one in threading.enumerate()}:\n"
        "        time.sleep(0.05)\n"
        "def turn(carry, _):\n"
        "    jax.debug.callback(wait, carry[0])\n"
        "    return carry + 1, None\n"
        "print(jax.jit(lambda x: jax.lax.scan(turn, x, None, length=25))(jnp.zeros(4))[0][0])\n",
    )
    done = captured("--whole", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("25.0")
    timing = passes(only(tmp_path))["timing"]
    assert timing.state == "recorded"
    assert (timing.reason or "").startswith("2 s of it")
    trace = load_one(run_folder(tmp_path))
    assert judge(load_rule("host_callback"), trace).status == "flagged"


@pytest.mark.slow
def test_a_trace_of_the_programs_own_comes_first(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "import pathlib\n"
        "def trace(turn, loss):\n"
        "    if turn == 2:\n        jax.profiler.start_trace('theirs')\n"
        "    if turn == 5:\n        jax.profiler.stop_trace()\n"
        "work(14, after=trace)\nprint(len(list(pathlib.Path('theirs').rglob('*.xplane.pb'))))\n",
    )
    done = captured(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    timing = passes(only(tmp_path))["timing"]
    assert timing.state == "recorded"
    assert timing.steps is not None
    assert timing.steps[0] > 5


@pytest.mark.slow
def test_xla_writes_its_programs_when_asked(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "work(8)\n")
    assert captured("--xla-dump", program, cwd=tmp_path).returncode == 0
    dump = passes(only(tmp_path))["xla_dump"]
    assert dump.artifact == "xla-dump-0"
    names = [path.name for path in (run_folder(tmp_path) / "xla-dump-0").iterdir()]
    assert any("jit_train_step" in name and name.endswith("after_optimizations.txt") for name in names)


@pytest.mark.slow
def test_dumps_of_the_programs_own_stay_where_they_are(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "import os\nwork(8)\nprint(os.environ['XLA_FLAGS'])\n")
    done = captured(
        "--xla-dump", program, cwd=tmp_path, env=environment(XLA_FLAGS="--xla_dump_to=mine --xla_dump_hlo_as_text")
    )
    assert done.stdout == "--xla_dump_to=mine --xla_dump_hlo_as_text\n"
    assert "names a folder" in str(passes(only(tmp_path))["xla_dump"].reason)


@pytest.mark.slow
def test_the_error_and_exit_code_of_the_program_stay(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "@jax.jit\ndef wrong(x):\n    raise ValueError('of the program')\n"
        "def fail(turn, loss):\n    if turn == 7:\n        wrong(loss)\nwork(9, after=fail)\n",
    )
    bare = plain(program, cwd=tmp_path)
    done = captured("-q", program, cwd=tmp_path)
    assert done.returncode == bare.returncode == 1
    assert said(done.stderr) == said(bare.stderr), "no frame of ours in the traceback either"
    assert passes(only(tmp_path))["timing"].state == "recorded"


@pytest.mark.slow
def test_an_error_of_our_own_never_reaches_the_program(tmp_path: Path) -> None:
    write(tmp_path, "import jax\ndel jax.live_arrays\n", "breaks.py")
    program = write(tmp_path, "import breaks\n" + LOOP + "work(10)\nprint('done')\n")
    done = captured(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "timing pass missing" in done.stderr


@pytest.mark.slow
def test_forked_workers_do_not_capture(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "import os\n"
        "def fork(turn, loss):\n    child = os.fork()\n    if child == 0:\n        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
        "weights, loss = work(9, after=fork)\n" + PRINT,
    )
    bare = plain(program, cwd=tmp_path)
    done = captured(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout
    assert {capture.state for capture in only(tmp_path).captures} == {"recorded"}
    assert not (run_folder(tmp_path) / "failures.txt").exists()


@pytest.mark.slow
def test_light_sees_no_syncs_and_an_import_alone_leaves_nothing(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "work(8)\n")
    assert captured("--level", "light", program, cwd=tmp_path).returncode == 0
    assert not {"syncs", "memory"} & passes(only(tmp_path)).keys()
    kept = latest(tmp_path).id
    idle = write(tmp_path, "import jax\n", "idle.py")
    done = captured(idle, cwd=tmp_path)
    assert "no steps were found" in done.stderr
    assert latest(tmp_path).id == kept


@pytest.mark.slow
@pytest.mark.torch
def test_with_both_frameworks_the_one_that_makes_the_steps_is_traced(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = write(
        tmp_path,
        "import torch\nimport perfscope\n" + LOOP + "work(10, after=lambda turn, loss: perfscope.step())\n",
    )
    assert captured(program, cwd=tmp_path).returncode == 0
    assert passes(only(tmp_path))["timing"].tool == "jax_profiler"

    program = write(
        tmp_path,
        LOOP + "import torch\nmodel = torch.nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "def both(turn, loss):\n    model(torch.ones(2, 4)).sum().backward()\n    optimizer.step()\n"
        "work(12, after=both)\n",
    )
    assert captured(program, cwd=tmp_path).returncode == 0
    process = only(tmp_path)
    assert (process.step_source, passes(process)["timing"].tool) == ("optimizer.step", "torch_profiler")
    assert passes(process)["events"].state == "recorded", "what jax does is listened to all the same"


@pytest.mark.slow
def test_a_run_hands_its_logs_to_the_rules(tmp_path: Path) -> None:
    program = write(
        tmp_path,
        LOOP + "work(9, rows=lambda turn: 8 if turn < 7 else 4, after=lambda turn, loss: loss.item())\n",
    )
    assert captured(program, cwd=tmp_path).returncode == 0
    (trace,) = load_all(run_folder(tmp_path))
    assert {"hlo", "compile_events", "host_reads", "steps"} <= trace.recorded
    assert [event.step for event in trace.compile_events if event.kind == "retrace"][-1] == 7
    assert {read.call for read in trace.host_reads} == {"item"}
    assert trace.step_times_ns, "each step reads, so that the host's times are the steps'"


AHEAD = """
import jax
import jax.numpy as jnp

@jax.jit
def train_step(state):
    return jax.lax.fori_loop(0, 40, lambda at, x: jnp.tanh(x @ x), state)

state = jnp.full((200, 200), 0.01)
for turn in range(12):
    with jax.profiler.StepTraceAnnotation("train", step_num=turn):
        state = train_step(state)
"""
"""Reads nothing in its steps: the host is ahead of the device."""


@pytest.mark.slow
def test_a_program_that_only_dispatches_is_timed_with_the_device_and_prints_the_same_bits(tmp_path: Path) -> None:
    program = write(tmp_path, AHEAD + "print(float(state.sum()).hex())\n")
    bare = plain(program, cwd=tmp_path)
    done = captured(program, cwd=tmp_path)
    assert done.stdout == bare.stdout, "bit for bit"
    assert not (run_folder(tmp_path) / "failures.txt").exists()
    process = only(tmp_path)
    assert process.window_steps == 4, "steps 6 to 9"
    assert process.window_compilations == 0
    assert process.window_ns is not None
    assert process.window_ns > sum(process.untraced_step_ns[:4]), "their dispatch lies in it"
    (trace,) = load_all(run_folder(tmp_path))
    assert (trace.window_ns, trace.window_steps) == (process.window_ns, 4)
    assert trace.step_times_ns == (), "what it takes to queue a step is no step time"


@pytest.mark.slow
def test_all_work_of_the_traced_steps_is_in_the_recording(tmp_path: Path) -> None:
    program = write(tmp_path, AHEAD)
    assert captured(program, cwd=tmp_path).returncode == 0
    (trace,) = load_all(run_folder(tmp_path))
    work = trace.fact(steps_work)
    assert work is not None
    assert work.late, "the host did not wait"
    if trace.frame("hlo_ops")["run_id"].isna().all():
        pytest.skip("this jax does not number the executions of its CPU backend")
    assert [step.number for step in work.steps] == [2, 3, 4]
    assert all(step.complete_ns > 0 for step in work.steps)
    ops = trace.frame("hlo_ops")
    of_each = ops.groupby("run_id").size()
    assert len(of_each) == 3
    assert of_each.nunique() == 1, "each step's work was recorded to its end"
    unmarked = [note for note in trace.source.notes if "without an end mark" in note]
    # XLA of jax 0.7 does not mark every end of work in its thread pool; the reader reports their number.
    assert not unmarked or only(tmp_path).packages["jax"].startswith("0.7.")


@pytest.mark.slow
def test_a_window_does_not_count_a_compilation_in_it(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "work(15, rows=lambda turn: 8 if turn < 7 else 4)\n")
    assert captured(program, cwd=tmp_path).returncode == 0
    process = only(tmp_path)
    assert (process.window_steps, process.window_compilations) == (4, 0), "steps 6 to 9 compiled, 10 to 13 did not"


pytest.importorskip("jax")

LEAK = LOOP + "kept = []\nwork(9, after=lambda turn, loss: kept.append(jnp.full((1000,), turn)))\n"


@pytest.mark.slow
def test_what_every_step_keeps_is_told_by_its_line(tmp_path: Path) -> None:
    done = captured(write(tmp_path, LEAK), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    memory = passes(only(tmp_path))["memory"]
    assert (memory.state, memory.reason, memory.artifact) == ("recorded", None, "rank00000/memory")
    trace = load_one(run_folder(tmp_path))
    trace.check()
    assert "memory_state" in trace.recorded
    growth = trace.fact(jax_growth)
    assert growth is not None
    assert growth.steps == len(trace.rows["steps"]) > 1
    first = growth.stacks[0]
    assert (first.grown, first.grown_bytes) == (growth.steps, 4000 * growth.steps)
    assert first.place is not None
    assert first.place.file.endswith("train.py")
    source = (tmp_path / "train.py").read_text().splitlines()
    assert "kept.append" in source[(first.place.line or 0) - 1]
    assert growth.grown_bytes == sum(stack.grown_bytes for stack in growth.stacks)

    profile = run_folder(tmp_path) / "rank00000" / "memory" / "after.prof"
    profile.write_bytes(profile.read_bytes()[:50])
    trace = load_one(run_folder(tmp_path))
    assert len(trace.rows["steps"]) > 1, "a corrupt profile costs only itself"
    assert trace.fact(jax_growth) is None
    assert any("device memory profile is corrupt" in note for note in trace.source.notes)


def test_a_profile_that_cannot_be_taken_is_said_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> bytes:
        raise RuntimeError("UNIMPLEMENTED: heap profile")

    monkeypatch.setattr("perfscope.profiler.jax.compat.memory_profile", refuse)
    log = MemoryLog()
    log.take()
    log.take()
    capture = log.save(tmp_path, tmp_path)
    assert (capture.state, capture.artifact) == ("missing", None)
    assert "UNIMPLEMENTED: heap profile" in (capture.reason or "")


def test_the_reader_knows_the_files_by_the_same_names() -> None:
    assert (_jax_moments.MOMENTS, _jax_moments.SUFFIX) == (jax_memory.MOMENTS, jax_memory.SUFFIX)


def test_one_moment_is_kept_where_the_second_never_came(tmp_path: Path) -> None:
    log = MemoryLog()
    assert log.save(tmp_path, tmp_path).reason == "no step was traced"
    log.take()
    capture = log.save(tmp_path, tmp_path)
    assert capture.state == "recorded"
    assert "had not ended" in (capture.reason or "")
    assert [file.name for file in (tmp_path / "memory").iterdir()] == ["before.prof"]
    log.take()
    log.take()
    assert log.save(tmp_path, tmp_path).reason is None
    assert sorted(file.name for file in (tmp_path / "memory").iterdir()) == ["after.prof", "before.prof"]


jax = pytest.importorskip("jax")

SSM = REPOSITORY / "perfscope" / "workloads" / "jax" / "ssm.py"
ARGUMENTS = ("--size", "tiny", "--steps", "16")


def perfscope(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "perfscope", *arguments]
    return warm.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "status"), [("scan", "flagged"), ("associative", "clean")])
def test_a_workload_is_captured_and_judged(variant: str, status: str, tmp_path: Path) -> None:
    ran = perfscope(tmp_path, "run", "-m", "perfscope.workloads.jax.ssm", "--variant", variant, *ARGUMENTS)
    assert ran.returncode == 0, ran.stderr
    assert "step  15  loss" in ran.stdout
    judged = perfscope(tmp_path, "analyze", "latest", "--format", "json")
    report = json.loads(judged.stdout)
    states = {capture["pass"]: capture["state"] for capture in report["run"]["processes"][0]["captures"]}
    assert states.items() >= {"timing": "recorded", "events": "recorded", "hlo": "recorded"}.items()
    outcomes = {outcome["rule"]: outcome for outcome in report["outcomes"]}
    scan = outcomes["sequential_scan"]
    assert (scan["status"], scan["reason"]) == (status, None)
    lines = SSM.read_text().splitlines()
    places = {(Path(found["where"]["file"]).name, found["where"]["line"]) for found in scan["findings"]}
    (body,) = (number for number, line in enumerate(lines, start=1) if "lax.scan(advance" in line)
    assert places == ({("ssm.py", body)} if status == "flagged" else set())
