"""A program in a fork of a warm interpreter runs and ends as in a new process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.session.programs import environment, write

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not warm.POSSIBLE, reason="this system cannot wait for processes of others"),
]

SEES = """
import os, sys, threading
print(__name__, __file__, __spec__, sys.argv, sys.orig_argv, sys.path[:2])
print(os.getcwd(), sorted(os.environ), os.environ["OTHER"], os.getpid() == os.getsid(0))
print([(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering) for stream in
       (sys.stdin, sys.stdout, sys.stderr)])
print(sorted({"torch", "torch._dynamo", "numpy", "perfscope", "tests", "pytest"} & set(sys.modules)))
import torch
print(sorted({"torch", "torch._dynamo", "torch.optim.adamw", "numpy", "perfscope", "tests"} & set(sys.modules)))
print(torch.__spec__.origin, torch.__spec__.submodule_search_locations)
print(torch.nn is sys.modules["torch.nn"], "_dynamo" in vars(torch))
torch.optim.AdamW([torch.ones(3, requires_grad=True)]).step()
print("torch._dynamo" in sys.modules, torch._dynamo is sys.modules["torch._dynamo"])
print(threading.current_thread() is threading.main_thread(), threading.active_count(), len(os.listdir("/proc/self/fd")))
print(sys.stdin.read(), file=sys.stderr)
import atexit
atexit.register(print, "at exit")
import work
"""


def started(*words: str, cwd: Path, **options: Any) -> tuple[int, str, str]:
    """How a program ended that must be a fork."""
    with warm.Popen([sys.executable, *words], cwd=cwd, env=environment(), text=True, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:  # fmt: skip
        out, err = process.communicate(timeout=60)
    assert process.is_fork
    return process.returncode, out, err


@pytest.mark.slow
def test_it_sees_what_it_sees_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("def works():\n    1 / 0\nworks()\n")
    command = [sys.executable, write(tmp_path, SEES), "a b", "-c"]
    both = [
        run(command, cwd=tmp_path, env=environment(OTHER="x"), capture_output=True, text=True, input="in\n",
            start_new_session=True, check=False)
        for run in (subprocess.run, warm.run)
    ]  # fmt: skip
    assert both[0].stdout.splitlines() == both[1].stdout.splitlines()
    assert both[0].stderr == both[1].stderr
    assert both[0].returncode == both[1].returncode == 1


@pytest.mark.parametrize(
    ("program", "code", "error"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(263)", 7, ""),
        ("sys.exit('no')", 1, "no\n"),
        ("os._exit(9)", 9, ""),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("print('x', end='', flush=True); os.abort()", -signal.SIGABRT, None),
        ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, None),
        ("threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()", 0, ""),
    ],
)
def test_it_ends_as_python_ends(tmp_path: Path, program: str, code: int, error: str | None) -> None:
    ended, out, err = started("-c", f"import torch, os, signal, sys, threading, time\n{program}", cwd=tmp_path)
    assert ended == code
    assert error is None or err == error
    assert out == ("late\n" if "late" in program else "x" if "'x'" in program else "")


def test_a_signal_reaches_it_and_both_may_be_waited_for(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import torch, time; print('ready', flush=True); time.sleep(60)"]
    with warm.Popen(command, cwd=tmp_path, env=environment(), text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
        process.terminate()
        assert process.wait(timeout=30) == process.poll() == -signal.SIGTERM


HOOK = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "torch._dynamo", "numpy"):
            print(name, "torch" in sys.modules)
sys.meta_path.insert(0, Finder())
"""


def test_import_hooks_see_the_import(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    with warm.Popen([sys.executable, "-c", "import torch; import torch._dynamo"], cwd=tmp_path, text=True,
                    env=environment(PYTHONPATH=str(tmp_path)), stdout=subprocess.PIPE) as process:  # fmt: skip
        out, _ = process.communicate(timeout=60)
    assert process.is_fork
    assert [line for line in out.splitlines() if "numpy" not in line] == ["torch False", "torch._dynamo True"]


def test_a_module_of_that_name_that_comes_first_is_the_one(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('mine')\n")
    program = write(tmp_path, "import torch\n")
    assert started(program, cwd=tmp_path) == (0, "mine\n", "")


FRAMES = """
import torch, sys, os
frame, files = sys._getframe(), []
while frame:
    files.append(os.path.basename(frame.f_code.co_filename))
    frame = frame.f_back
print(files, [name for name in ("click", "perfscope.commands.run") if name in sys.modules])
"""


def test_a_program_of_a_fork_is_a_fork_and_has_no_frame_of_its_parent(tmp_path: Path) -> None:
    pytest.importorskip("greenlet")
    command = ("-m", "perfscope", "run", "-q", "--no-report", write(tmp_path, FRAMES))
    code, out, err = started(*command, cwd=tmp_path)
    assert (code, out) == (0, "['train.py', '<warm>', '<warm>', '<warm>'] []\n"), err


def test_other_starts_are_no_forks(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "raise SystemExit\nimport torch"]
    for command, more in (
        ([sys.executable, "-S", *program[1:]], {}),
        ([sys.executable, "-c", "pass"], {}),
        (program, {"env": environment(OMP_NUM_THREADS="2")}),
        (program, {"preexec_fn": lambda: None}),
    ):
        options: dict[str, Any] = {"env": environment(), **more}
        with warm.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, **options) as process:
            process.wait()
        assert not process.is_fork
    with pytest.raises(FileNotFoundError):
        warm.Popen(program, cwd=tmp_path / "nowhere", env=environment())


@pytest.mark.jax
def test_each_program_has_a_backend_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    program = "import jax; print(jax.device_count(), jax.numpy.ones(3).sum())"
    for devices in (2, 3):
        flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}
        with warm.Popen([sys.executable, "-c", program], cwd=tmp_path, text=True, env=environment(**flags),
                        stdout=subprocess.PIPE) as process:  # fmt: skip
            out, _ = process.communicate(timeout=60)
        assert process.is_fork
        assert out == f"{devices} 3.0\n"
