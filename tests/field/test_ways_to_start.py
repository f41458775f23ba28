"""Every way to start a program: its steps are captured, and its output and exit code are those under plain python.

`WAYS` is the table: one program per row, which imports the loop of a framework (`LOOPS`) and starts it in its own way.
A row is skipped, with the reason, where the framework, a package or a command is missing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Process, Run
from tests.conftest import REPOSITORY

SECONDS = 240
STEPS = 14

LOOPS = {
    "torch": """
import torch

def train(steps=14):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model(torch.ones(8, 16)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item().hex()}\\n", end="", flush=True)
""",
    "jax": """
import jax
import jax.numpy as jnp

@jax.jit
def train_step(weights, batch):
    loss, slopes = jax.value_and_grad(lambda weights: ((batch @ weights) ** 2).sum())(weights)
    return weights - 0.001 * slopes, loss

def train(steps=14):
    weights, batch = jnp.ones((16, 4)), jnp.ones((8, 16))
    for _ in range(steps):
        weights, loss = train_step(weights, batch)
        loss.block_until_ready()
    print(f"loss {float(loss).hex()}\\n", end="", flush=True)
""",
}
"""Framework -> ``loop.py``, a training loop that does not know perfscope."""
SOURCES = {"torch": "optimizer.step", "jax": "calls of train_step"}
"""Framework -> the source of the steps of its loop."""

WORK = "def work(_=None):\n    import loop\n    loop.train()\n"
CHILD = "import os, subprocess, sys\nwords = [sys.executable, '-c', 'import loop; loop.train()']\n"
GLOO = """
import os, sys
import torch.distributed
import loop

def work(rank, port):
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    loop.train()
    torch.distributed.destroy_process_group()

if __name__ == "__main__":
    import socket
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    torch.multiprocessing.spawn(work, args=(port,), nprocs=2)
"""


RANKS = (
    GLOO.partition("def work")[0] + "torch.distributed.init_process_group('gloo')\n"
    "loop.train()\ntorch.distributed.destroy_process_group()\n"
)
RAY = """
import ray

@ray.remote
class Worker:
    def train(self):
        import loop

        loop.train()

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
ray.get([worker.train.remote() for worker in [Worker.remote() for _ in range(2)]])
print("trained")
ray.shutdown()
"""
"""Ray starts its workers by a program in C++, which gets the command of Python as an argument."""


def notebook(*cells: str) -> str:
    """A notebook with these cells."""
    listed = [
        {"cell_type": "code", "id": f"c{n}", "metadata": {}, "outputs": [], "execution_count": None, "source": source}
        for n, source in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return json.dumps({"cells": listed, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5})


@dataclass(frozen=True, kw_only=True)
class Way:
    """A row. ``words``: a command, or what follows ``python``; also what follows ``perfscope run`` without ``ours``."""

    name: str
    words: tuple[str, ...] = ("train.py",)
    files: Mapping[str, str] = field(default_factory=dict)
    command: bool = False
    ours: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ("torch", "jax")
    needs: tuple[str, ...] = ()
    """Packages, and commands on the path."""
    processes: int = 1
    """Captured ones."""
    child: bool = False
    """Whether they were captured because the first process made no step, which a note says."""
    code: int = 0
    terminated: bool = False
    """Whether SIGTERM ends the process of the steps, so that its last seconds are not written."""
    thread: bool = False
    """Whether another thread than the main one makes the steps, which torch 2.6 cannot profile."""


def script(name: str, program: str, **more: Any) -> Way:
    """A row whose program is one script."""
    return Way(name=name, files={"train.py": program}, **more)


def parent(name: str, program: str, **more: Any) -> Way:
    """A row whose script makes no step itself and starts a process that does."""
    return script(name, program, child=True, **more)


LAUNCH = "import loop\nloop.train()\n"
NOTEBOOK = {"train.ipynb": notebook("import loop", "loop.train()")}
EXECUTE = ("--to", "notebook", "--execute", "train.ipynb", "--output", "done.ipynb")
PYTEST = {"test_train.py": "import loop\ndef test_train():\n    loop.train(14)\n"}
WAYS = (
    script("script and its exit code", LAUNCH + "raise SystemExit(3)\n", code=3),
    Way(name="-m module", words=("-m", "package.train"), files={"package/train.py": LAUNCH}),
    parent("subprocess", CHILD + "subprocess.run(words, check=True)\n"),
    parent("subprocess with an environment", CHILD + "subprocess.run(words, env=dict(os.environ, OWN='1'))\n"),
    parent("subprocess by posix_spawn", CHILD + "subprocess.run(words, close_fds=False)\n"),
    parent("shell", CHILD + "import shlex\nsubprocess.run('OWN=1 ' + shlex.join(words), shell=True)\n"),
    parent(
        "os.system",
        CHILD
        + "import shlex\nraise SystemExit(os.waitstatus_to_exitcode(os.system(shlex.join(words) + '; exit 5')))\n",
        code=5,
    ),
    parent("os.execv", CHILD + "os.execv(sys.executable, words)\n"),
    parent(
        "multiprocessing, fork",
        WORK + "import multiprocessing\nchild = multiprocessing.get_context('fork').Process(target=work)\n"
        "child.start()\nchild.join()\n",
    ),
    parent(
        "multiprocessing, spawn",
        WORK + "import multiprocessing\nif __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work)\n    child.start()\n    child.join()\n",
    ),
    parent(
        "multiprocessing, forkserver",
        WORK + "import multiprocessing\nif __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('forkserver').Process(target=work)\n"
        "    child.start()\n    child.join()\n",
    ),
    parent("Ray actors", RAY, needs=("ray",), terminated=True),
    parent(
        "multiprocessing.Pool",
        WORK + "import multiprocessing\nif __name__ == '__main__':\n"
        "    with multiprocessing.Pool(1) as pool:\n        pool.map(work, range(1))\n",
        terminated=True,
    ),
    parent(
        "ProcessPoolExecutor",
        WORK + "from concurrent.futures import ProcessPoolExecutor\nif __name__ == '__main__':\n"
        "    with ProcessPoolExecutor(1) as pool:\n        list(pool.map(work, range(1)))\n",
    ),
    parent("torch.multiprocessing.spawn", GLOO, frameworks=("torch",), processes=2),
    Way(
        name="torchrun",
        command=True,
        words=("torchrun", "--standalone", "--nproc-per-node=2", "train.py"),
        files={
            "train.py": RANKS,
        },
        frameworks=("torch",),
        needs=("torchrun",),
        processes=2,
    ),
    Way(
        name="accelerate launch",
        command=True,
        words=("accelerate", "launch", "--cpu", "--num_processes=1", "train.py"),
        files={"train.py": LAUNCH},
        frameworks=("torch",),
        needs=("accelerate",),
    ),
    Way(
        name="deepspeed launcher",
        command=True,
        words=("deepspeed", "--num_accelerators=1", "train.py"),
        files={"train.py": "import loop\nloop.train()\n"},
        frameworks=("torch",),
        needs=("deepspeed",),
    ),
    Way(
        name="deepspeed launcher, two ranks",
        command=True,
        words=("deepspeed", "--num_accelerators=2", "train.py"),
        files={"train.py": RANKS},
        frameworks=("torch",),
        needs=("deepspeed",),
        processes=2,
    ),
    Way(
        name="notebook",
        words=("-m", "nbconvert", "--log-level", "WARN", *EXECUTE),
        ours=("train.ipynb", "--output", "done.ipynb"),
        files=NOTEBOOK,
        needs=("nbconvert", "ipykernel"),
    ),
    Way(
        name="nbconvert --execute",
        words=("-m", "nbconvert", *EXECUTE),
        files=NOTEBOOK,
        needs=("nbconvert", "ipykernel"),
    ),
    Way(
        name="jupyter nbconvert --execute",
        command=True,
        words=("jupyter", "nbconvert", *EXECUTE),
        files=NOTEBOOK,
        needs=("nbconvert", "ipykernel", "jupyter-nbconvert"),
    ),
    Way(name="pytest", words=("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_train.py"), files=PYTEST),
    Way(
        name="console script",
        command=True,
        words=("./train-it",),
        files={"train-it": f"#!{sys.executable}\n" + LAUNCH},
    ),
    script(
        "thread",
        "import threading\nimport loop\nthread = threading.Thread(target=loop.train)\nthread.start()\nthread.join()\n",
        thread=True,
    ),
    script(
        "asyncio.to_thread", "import asyncio\nimport loop\nasyncio.run(asyncio.to_thread(loop.train))\n", thread=True
    ),
)


def rows() -> list[Any]:
    """The table, by framework."""
    return [
        pytest.param(
            way,
            framework,
            id=f"{way.name}-{framework}",
            marks=[getattr(pytest.mark, framework), pytest.mark.slow],
        )
        for way in WAYS
        for framework in way.frameworks
    ]


def environment() -> dict[str, str]:
    """This process's environment, which finds perfscope and the commands of this python first."""
    held = {name: value for name, value in os.environ.items() if not name.startswith(("PERFSCOPE_", "PYTEST_"))}
    path = os.pathsep.join(filter(None, (str(REPOSITORY), held.get("PYTHONPATH"))))
    commands = os.pathsep.join([str(Path(sys.executable).parent), held["PATH"]])
    return {**held, "PYTHONPATH": path, "PATH": commands, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


def require(way: Way, framework: str) -> None:
    """Skip where something is missing."""
    for name in (framework, *way.needs):
        if importlib.util.find_spec(name) is None and shutil.which(name, path=environment()["PATH"]) is None:
            pytest.skip(f"{name} is not installed")


def start(*words: str, folder: Path, command: bool = False) -> subprocess.CompletedProcess[str]:
    """``python WORDS``, or ``WORDS`` if they are a command."""
    return subprocess.run(
        words if command else [sys.executable, *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def written(folder: Path, framework: str, files: Mapping[str, str]) -> Path:
    """The folder, with the loop and the program in it."""
    for name, text in {"loop.py": LOOPS[framework], **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return folder


def lines(text: str) -> list[str]:
    """Lines without the numbers in them: times, processes, ports."""
    return [re.sub(r"[0-9a-f]*[0-9][0-9a-f.]*", "#", line) for line in text.splitlines()]


def notebook_output(folder: Path) -> list[Any]:
    """Outputs of the executed notebook, if there is one; taken away."""
    path = folder / "done.ipynb"
    if not path.exists():
        return []
    cells = json.loads(path.read_text())["cells"]
    path.unlink()
    return [cell["outputs"] for cell in cells]


def only_run(folder: Path) -> Run:
    """The run that the program made."""
    (directory,) = run_folders.directories(folder / "perfscope-runs")
    return run_folders.read(directory)


def with_steps(run: Run) -> list[Process]:
    """Its processes with steps."""
    return [process for process in run.processes if process.step_source]


def profiles_all_threads(framework: str) -> bool:
    """Whether the profiler records threads other than the main one: newer versions of torch than 2.6, and jax."""
    if framework == "torch":
        import torch  # noqa: F401 (the function reads it from sys.modules)

        from perfscope.profiler.torch.compat import profiler_config

        try:
            profiler_config(device_syncs=False, all_threads=True)
        except TypeError:
            return False
    return True


def judge(process: Process, framework: str, *, terminated: bool = False, thread: bool = False) -> None:
    """The steps of the loop were found, all were counted, and the timing pass has its own."""
    assert process.step_source == SOURCES[framework]
    assert process.steps_seen == STEPS or terminated
    (timing,) = [capture for capture in process.captures if capture.pass_name == "timing"]
    if thread and not profiles_all_threads(framework):
        assert (timing.state, bool(timing.reason)) == ("missing", True)
    else:
        assert (timing.state, timing.steps) == ("recorded", (2, 5)), timing.reason
    assert not [capture for capture in process.captures if "failed here" in (capture.reason or "")]


def note(record_property: Any, name: str, framework: str, processes: list[Process]) -> None:
    """Keep the row's result for ``pytest --junitxml``."""
    seen = ", ".join(str(process.steps_seen) for process in processes)
    record_property("row", f"{name} | {framework} {importlib.metadata.version(framework)} | {seen}")


@pytest.mark.parametrize(("way", "framework"), rows())
def test_steps_are_captured_and_the_program_is_as_under_plain_python(
    way: Way, framework: str, tmp_path: Path, record_property: Any
) -> None:
    require(way, framework)
    folder = written(tmp_path, framework, way.files)
    plain = start(*way.words, folder=folder, command=way.command)
    shown = notebook_output(folder)
    if plain.returncode != way.code:
        pytest.skip(f"it fails by itself here: {(plain.stderr.strip() or plain.stdout).splitlines()[-1]}")
    done = start("-m", "perfscope", "run", "-q", "--no-report", *(way.ours or way.words), folder=folder)
    assert done.returncode == way.code, done.stderr
    assert lines(done.stdout) == lines(plain.stdout)
    assert sorted(re.findall("loss.*", done.stdout)) == sorted(re.findall("loss.*", plain.stdout)), "to the last bit"
    assert notebook_output(folder) == shown
    assert not set(lines(done.stderr)) - set(lines(plain.stderr)), done.stderr
    run = only_run(folder)
    assert any("processes that the program started" in said for said in run.notes) == way.child, run.notes
    processes = with_steps(run)
    note(record_property, way.name, framework, processes)
    assert len(processes) == way.processes
    for process in processes:
        judge(process, framework, terminated=way.terminated, thread=way.thread)


INSIDE = {
    "perfscope.profile block": "import perfscope\nwith perfscope.profile(quiet=True):\n    loop.train()\n",
    "perfscope.profile decorator": "import perfscope\nperfscope.profile(quiet=True)(loop.train)()\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("framework", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in LOOPS])
@pytest.mark.parametrize("how", INSIDE)
def test_a_program_that_captures_itself_is_as_without(
    how: str, framework: str, tmp_path: Path, record_property: Any
) -> None:
    require(Way(name=how), framework)
    folder = written(tmp_path, framework, {"plain.py": LAUNCH, "train.py": f"import loop\n{INSIDE[how]}"})
    plain, done = start("plain.py", folder=folder), start("train.py", folder=folder)
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    (process,) = with_steps(only_run(folder))
    note(record_property, how, framework, [process])
    judge(process, framework)


@pytest.mark.slow
@pytest.mark.torch
def test_a_trace_of_the_programs_own_profiler_is_written_and_the_program_is_as_without(
    tmp_path: Path, record_property: Any
) -> None:
    require(Way(name="own"), "torch")
    profiled = (
        "import torch\nschedule = torch.profiler.schedule(wait=1, warmup=1, active=2)\n"
        "with torch.profiler.profile(schedule=schedule HANDLER) as profiler:\n"
        "    for _ in range(6):\n        loop.train(1)\n        profiler.step()\n"
    )
    handler = ", on_trace_ready=perfscope.trace_handler(quiet=True)"
    programs = {
        "plain.py": "import loop\n" + profiled.replace("HANDLER", ""),
        "train.py": "import loop, perfscope\n" + profiled.replace("HANDLER", handler),
    }
    folder = written(tmp_path, "torch", programs)
    plain, done = start("plain.py", folder=folder), start("train.py", folder=folder)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert lines(done.stderr) == lines(plain.stderr)
    analyzed = start("-m", "perfscope", "analyze", "--format", "json", "perfscope-traces/cycle0", folder=folder)
    assert json.loads(analyzed.stdout)["steps"], analyzed.stderr
    record_property("row", f"own torch.profiler | torch {importlib.metadata.version('torch')} | cycle of 2")


SERVER = """
import sys, time, loop
print("ready", flush=True)
with open("log", "w") as sys.stdout:
    while True:
        loop.train(1)
        time.sleep(0.02)
"""


@pytest.mark.slow
@pytest.mark.parametrize("framework", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in LOOPS])
def test_a_service_ends_after_the_requested_time_with_its_captures_and_code_0(
    framework: str, tmp_path: Path, record_property: Any
) -> None:
    require(Way(name="service"), framework)
    folder = written(tmp_path, framework, {"train.py": SERVER})
    done = start("-m", "perfscope", "run", "-q", "--no-report", "--for", "40s", "train.py", folder=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
    run = only_run(folder)
    assert (run.state, run.exit_code) == ("finished", 0)
    assert "ended after 40 s (--for)" in run.notes
    (process,) = with_steps(run)
    note(record_property, "service with --for", framework, [process])
    judge(process, framework, terminated=True)
