"""The program under capture is the program under plain python, and signals reach it once."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from perfscope.__main__ import run as command_line
from perfscope.commands.run import TARGET, run
from perfscope.model.capture import CaptureOptions, Message
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import load_run
from perfscope.profiler.launch import program
from tests.session.programs import LOOP, captured, environment, plain, start, write

PROBE = """
import json, os, signal, sys
main = sys.modules["__main__"]
hidden = {"_", "COLUMNS", "LINES"}
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "name": __name__, "file": main.__file__, "is_main": globals() is vars(main),
    "spec": getattr(main.__spec__, "name", None), "stdin": sys.stdin.read(), "flags": list(sys.flags),
    "environ": {k: v for k, v in os.environ.items() if k not in hidden}, "cwd": os.getcwd(),
    "meta_path": [type(f).__name__ for f in sys.meta_path if type(f).__name__ != "_WaitForFramework"],
    "handlers": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)],
    "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
}))
print("to stderr", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("words", "python_path"),
    [
        (["probe.py", "--help", "-q", "a b"], None),
        (["-m", "package.probe", "--level", "x"], "elsewhere"),
        (["-"], ""),
    ],
    ids=["script", "module", "stdin"],
)
def test_the_program_sees_what_it_sees_under_plain_python(
    tmp_path: Path, words: list[str], python_path: str | None
) -> None:
    write(tmp_path, PROBE, "probe.py")
    (tmp_path / "package").mkdir()
    write(tmp_path / "package", PROBE, "probe.py")
    # perfscope must be importable for `python -m perfscope`, so the checkout is in every path.
    held = environment()["PYTHONPATH"]
    paths = {None: held, "elsewhere": os.pathsep.join([held, "elsewhere"]), "": held + os.pathsep}
    options = {"input": PROBE if words == ["-"] else "typed\n", "env": environment(PYTHONPATH=paths[python_path])}
    bare = plain(*words, cwd=tmp_path, **options)
    done = captured("-q", *words, cwd=tmp_path, **options)
    assert bare.returncode == 7, bare.stderr
    assert done.returncode == 7
    assert done.stderr == bare.stderr
    assert json.loads(done.stdout) == json.loads(bare.stdout)


def test_a_sitecustomize_of_the_users_still_runs(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    write(tmp_path / "site", "import builtins\nbuiltins.PLANTED = 'ran'\n", "sitecustomize.py")
    write(tmp_path, "import sys\nprint(PLANTED, sys.modules['sitecustomize'].__file__)\n")
    options = {"env": environment(PYTHONPATH=os.pathsep.join([environment()["PYTHONPATH"], str(tmp_path / "site")]))}
    assert captured("train.py", cwd=tmp_path, **options).stdout == plain("train.py", cwd=tmp_path, **options).stdout


ASKS_FIRST = """
import importlib.util
assert importlib.util.find_spec("torch") is not None
assert importlib.util.find_spec("torch") is not None
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_program_that_asks_for_torch_before_it_imports_it_is_captured(tmp_path: Path) -> None:
    """As transformers does: `from transformers import ...` before `import torch`."""
    write(tmp_path, ASKS_FIRST)
    done = captured("--level", "light", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = tmp_path / "perfscope-runs" / "latest" / "run.json"
    (process,) = json.loads(manifest.read_text())["processes"]
    assert process["steps_seen"] == 12


@pytest.mark.slow
def test_an_argument_that_is_not_utf_8_costs_no_run(tmp_path: Path) -> None:
    program = write(tmp_path, ASKS_FIRST)
    done = captured("--level", "light", program, b"data/\xff", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = [path for path in (tmp_path / "perfscope-runs").iterdir() if not path.is_symlink()]
    assert load_run(run / "run.json").command[-1] == "data/?"


def test_a_command_gets_its_arguments_and_python_below_it_captures(tmp_path: Path) -> None:
    write(tmp_path, "import os\nprint('PERFSCOPE_CAPTURE' in os.environ)\n")
    done = captured("--", "sh", "-c", f'echo "$1"; "{sys.executable}" train.py; exit 9', "sh", "-q", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (9, "-q\nTrue\n")


def test_the_path_of_an_interpreter_is_a_command(tmp_path: Path) -> None:
    write(tmp_path, "import os, sys\nprint('PERFSCOPE_CAPTURE' in os.environ, sys.argv[1:])\n")
    done = captured(sys.executable, "train.py", "-q", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "True ['-q']\n")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_killed_by_a_signal_returns_128_and_the_signal(tmp_path: Path, number: signal.Signals) -> None:
    write(tmp_path, f"import os\nos.kill(os.getpid(), {int(number)})\n")
    done = captured("train.py", cwd=tmp_path)
    assert done.returncode == 128 + number
    assert number.name in done.stderr


@pytest.mark.parametrize(
    ("program", "code", "part"),
    [
        ("import sys\nsys.exit(0)\n", 0, "no Python process"),
        ("def f(:\n", 1, "SyntaxError: "),
        ("raise ValueError('no data\\nat all')\n", 1, "ValueError: no data"),
    ],
)
def test_a_run_that_captured_nothing_leaves_nothing_and_says_why_in_one_line(
    tmp_path: Path, program: str, code: int, part: str
) -> None:
    done = captured(write(tmp_path, program), cwd=tmp_path)
    assert done.returncode == code
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("perfscope: ")]
    assert part in line
    assert not (tmp_path / "perfscope-runs").exists()


COUNTS = """
import os, signal, sys, time
got = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda n, f: got.append(n))
print("ready", flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.3)
print(got, flush=True)
"""


def to_process(process: subprocess.Popen[str], number: int) -> None:
    process.send_signal(number)


def to_group(process: subprocess.Popen[str], number: int) -> None:
    os.killpg(process.pid, number)


@pytest.mark.parametrize(("send", "number"), [(to_process, signal.SIGTERM), (to_group, signal.SIGINT)])
def test_a_signal_reaches_the_program_once(
    tmp_path: Path, send: Callable[[subprocess.Popen[str], int], None], number: signal.Signals
) -> None:
    process = start(write(tmp_path, COUNTS), cwd=tmp_path, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    send(process, number)
    out, _ = process.communicate(timeout=60)
    assert out == f"[{int(number)}]\n"
    assert process.returncode == 0


def at_a_terminal(tmp_path: Path, program: str, keys: bytes, *, quiet: bool = True) -> tuple[str, int]:
    """Run the program under capture at a separate terminal, press ``keys`` when it is ready."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "perfscope", "run", *["-q"] * quiet, "--no-report", write(tmp_path, program)],
        cwd=tmp_path,
        env=environment(),
        preexec_fn=lambda: os.login_tty(slave),
    )
    os.close(slave)
    shown = b""
    pressed = False
    with contextlib.suppress(OSError):  # how a terminal reports that its other end is closed
        while piece := os.read(master, 4096):
            shown += piece
            if b"ready" in shown and not pressed:
                pressed = True
                for key in keys:
                    os.write(master, bytes([key]))
                    time.sleep(0.2)
    os.close(master)
    return shown.decode(), process.wait(timeout=60)


def test_ctrl_c_at_a_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    shown, code = at_a_terminal(tmp_path, COUNTS, b"\x03")
    assert "[2]" in shown
    assert code == 0


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    deaf = COUNTS.replace("while not got:", "while True:")
    _, code = at_a_terminal(tmp_path, deaf, b"\x03\x03")
    assert code == 128 + signal.SIGKILL


@pytest.mark.slow
@pytest.mark.torch
def test_the_plan_is_said_on_a_terminal_and_with_q_nothing_is(tmp_path: Path) -> None:
    shown, code = at_a_terminal(tmp_path, LOOP + "work(10)\n", b"", quiet=False)
    assert code == 0
    assert "on CPU, steps from optimizer.step, timing on steps 2-4, structure on step 5, detail on step 6" in shown
    assert at_a_terminal(tmp_path, LOOP + "work(10)\n", b"") == ("", 0)


ENDLESS = LOOP + (
    "turns = iter(range(10**9))\n"
    "def after():\n    if next(turns) == 12:\n        print('ready', flush=True)\n"
    "work(10**9, after=after)\n"
)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("number", "state", "code"),
    [
        (signal.SIGINT, "interrupted", 128 + signal.SIGINT),
        pytest.param(signal.SIGTERM, "killed", 128 + signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_captures_are_kept_when_a_signal_ends_the_program(
    tmp_path: Path, number: signal.Signals, state: str, code: int
) -> None:
    process = start("--level", "light", write(tmp_path, ENDLESS), cwd=tmp_path, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    run = run_folders.read(tmp_path / "perfscope-runs" / "latest")
    assert run.state == state
    assert {capture.state for capture in run.processes[0].captures} == {"recorded"}


def test_a_program_whose_time_is_over_ends_with_its_own_code_and_a_shorter_one_is_left_alone(tmp_path: Path) -> None:
    handler = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\ntime.sleep(60)\n"
    ended = captured("--for", "1", write(tmp_path, handler), cwd=tmp_path)
    assert ended.returncode == 9
    assert "ended after 1 s (--for)" in ended.stderr
    early = captured(
        "--for", "2", write(tmp_path, "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"), cwd=tmp_path
    )
    assert (early.returncode, early.stdout) == (0, "ready\n")
    assert "torch or jax was not imported in the 2 s of --for" in early.stderr
    assert captured("--for", "1m", write(tmp_path, "print('done')"), cwd=tmp_path).stdout == "done\n"


def test_a_program_that_ignores_the_end_of_its_time_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "GRACE_S", 0.5)
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)\n"
    target = program.Target(arguments=(sys.executable, "-c", deaf), command=True)
    options = CaptureOptions(seconds=1.0)
    message = Message(directory=str(tmp_path), options=options, pythonpath=None, follow=False)
    ended = program.launch(target, message)
    assert (ended.code, ended.signal, ended.timed_out) == (128 + signal.SIGKILL, signal.SIGKILL, True)


@pytest.mark.slow
@pytest.mark.torch
def test_a_run_that_is_killed_opens_and_its_program_dies_with_it(tmp_path: Path) -> None:
    process = start(write(tmp_path, ENDLESS), cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    latest = tmp_path / "perfscope-runs" / "latest"
    assert run_folders.read(latest).state == "running"
    process.kill()
    process.wait(timeout=60)
    assert process.stdout.read() == "", "its end means that the program, which held the other end, is gone"
    run = run_folders.read(latest)
    assert (run.state, run.exit_code) == ("killed", None)
    assert {capture.state for capture in run.processes[0].captures} == {"recorded"}
    process.stdout.close()
    if process.stderr is not None:
        process.stderr.close()


def split(*words: str) -> tuple[dict[str, object], tuple[str, ...], str]:
    """(our options that were given, the program's words, what kind of target)."""
    context = run.make_context("run", list(words))
    given = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    }
    target, kind = context.meta[TARGET]
    return given, target, kind


@pytest.mark.parametrize(
    ("words", "given", "target", "kind"),
    [
        (["train.py"], {}, ("train.py",), "script"),
        (["train.py", "--level", "x", "-q"], {}, ("train.py", "--level", "x", "-q"), "script"),
        (
            ["-q", "--level", "deep", "train.py", "-o", "y"],
            {"quiet": True, "level": "deep"},
            ("train.py", "-o", "y"),
            "script",
        ),
        (["--level=deep", "train.py", "--help"], {"level": "deep"}, ("train.py", "--help"), "script"),
        (["-m", "pkg.train", "-q", "--", "a"], {}, ("pkg.train", "-q", "--", "a"), "module"),
        (["-mpkg", "-q"], {}, ("pkg", "-q"), "module"),
        (["-q", "--", "torchrun", "-q", "train.py"], {"quiet": True}, ("torchrun", "-q", "train.py"), "command"),
        (["-oruns", "-"], {"output": Path("runs")}, ("-",), "script"),
        (["-q", "sh", "-q", "train.sh"], {"quiet": True}, ("sh", "-q", "train.sh"), "command"),
        (["--name", "-m", "train.py"], {"name": "-m"}, ("train.py",), "script"),
    ],
)
def test_options_before_the_program_are_ours_and_all_behind_is_the_programs(
    words: list[str], given: dict[str, object], target: tuple[str, ...], kind: str
) -> None:
    assert split(*words) == (given, target, kind)


def test_an_option_after_a_program_that_refuses_it_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit(2)\n")
    line = "perfscope: the program got --level=deep, --name: options of perfscope belong before the program\n"
    assert command_line(["run", "train.py", "--level=deep", "--name", "a", "--epochs", "2"]) == 2
    assert line in capsys.readouterr().err
    assert command_line(["run", "train.py", "--epochs", "2"]) == 2
    assert "belong before the program" not in capsys.readouterr().err


def test_an_unknown_option_of_ours_is_refused() -> None:
    with pytest.raises(click.UsageError, match="--levle"):
        split("--levle", "deep", "train.py")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "nothing to run"),
        (["--steps", "5", "x.py"], 2, "give A:B"),
        (["--steps", "0:2", "x.py"], 2, "first step that can be captured is 1"),
        (["--steps", "5:5", "x.py"], 2, "captures no step"),
        (["--whole", "--steps", "1:2", "x.py"], 2, "--whole"),
        (["--for", "soon", "x.py"], 2, "--for soon: give a time such as 90s"),
        (["--no-follow", "-m", "torch.distributed.run", "x.py"], 2, "starts the program as another process"),
        (["absent.py"], 125, "absent.py: no such file"),
        (["--", "no-such-command-here"], 125, "no-such-command-here: no such command"),
        (["-o", "taken/runs", "taken"], 125, "taken/runs"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_leaves_no_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    assert command_line(["run", "--no-report", *words]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("perfscope: ")
    assert text in line
    assert not (tmp_path / "perfscope-runs").exists()


@pytest.mark.torch
def test_the_whole_verb_reports_and_a_second_run_has_a_directory_of_its_own(tmp_path: Path) -> None:
    program = write(tmp_path, LOOP + "work(12)\nprint('mine')\n")
    options = ("--level", "light", "--name", "twice", program)
    done = plain("-m", "perfscope", "run", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
    run = (tmp_path / "perfscope-runs" / "latest").resolve()
    assert (run / "report.html").read_text().lstrip().startswith("<!")
    report = json.loads((run / "report.json").read_text())
    assert report["schema"] == "perfscope.report/1"
    assert {item["rule"] for item in report["outcomes"]} >= {"unfused_ops", "launch_bound"}
    assert "report.html" in done.stderr
    assert "look    perfscope serve latest" in done.stderr

    assert captured(*options, cwd=tmp_path).returncode == 0
    runs = {path.name for path in (tmp_path / "perfscope-runs").iterdir() if not path.is_symlink()}
    assert len(runs) == 2
    assert all("-twice-" in name for name in runs)
    assert {run_folders.find("latest", tmp_path / "perfscope-runs").name} == runs - {run.name}, "latest is the second"
    assert run_folders.load_run(run / "run.json").id == run.name
