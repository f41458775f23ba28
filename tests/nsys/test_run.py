"""``perfscope run --capture nsys`` around a fake ``nsys``: its calls, and all its possible outcomes."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.load import load_path
from perfscope.model.capture import CaptureOptions
from perfscope.profiler.launch.program import Ended
from perfscope.profiler.nsys import command
from perfscope.profiler.nsys.command import NsysRun
from tests.nsys.fake_nsys import HELP, FakeNsys, put
from tests.readers.nsys.exports import START_END, Export, small
from tests.session.programs import captured, environment, latest, passes, plain, write

PROGRAM = """
import os, sys
print("out", sys.argv[1:], sys.stdin.read())
print("err", file=sys.stderr)
open("made", "w").close()
if sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
sys.exit(int(sys.argv[1]))
"""


def run(fake: FakeNsys, cwd: Path, *words: str, umask: int = 0o022, **options: Any) -> subprocess.CompletedProcess[str]:
    return captured(
        "--capture", "nsys", *words, cwd=cwd, env=environment(PATH=fake.path), input="in", umask=umask, **options
    )


def installed(monkeypatch: pytest.MonkeyPatch, fake: FakeNsys) -> command.Installed:
    monkeypatch.setenv("PATH", fake.path)
    found = command.probe()
    assert isinstance(found, command.Installed)
    return found


def test_the_program_has_its_streams_arguments_umask_and_exit_code(tmp_path: Path) -> None:
    fake = put(tmp_path / "bin", export=small().write(tmp_path / "canned.sqlite"))
    done = run(fake, tmp_path, write(tmp_path, PROGRAM), "7", "--trace=x", "a b")
    assert done.returncode == 7, done.stderr
    assert done.stdout == "out ['7', '--trace=x', 'a b'] in\n"
    assert done.stderr.startswith("err\n")
    assert "Generating" not in done.stderr
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o644


def test_a_killed_program_leaves_what_was_recorded(tmp_path: Path) -> None:
    fake = put(tmp_path / "bin", export=small().write(tmp_path / "canned.sqlite"))
    assert run(fake, tmp_path, write(tmp_path, PROGRAM), "kill").returncode == 137
    (trace,) = load_path(tmp_path / "perfscope-runs" / "latest").traces
    assert len(trace.rows["kernels"]) == 1


def test_the_recording_is_the_timing_pass_and_the_plain_export_is_gone(tmp_path: Path) -> None:
    export = small()
    export.add("TARGET_INFO_SYSTEM_ENV", name="EnvironmentVariable", value="TOKEN=hunter2")
    export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value="TOKEN=hunter2")
    export.add("META_DATA_CAPTURE", name="PROCESS_0:COLLECT_CUDA_TRACE", value="true")
    export.text("A=1\0TOKEN=hunter2\0B=2")
    fake = put(tmp_path / "bin", export=export.write(tmp_path / "canned.sqlite"))
    assert b"hunter2" in (tmp_path / "canned.sqlite").read_bytes()
    done = run(fake, tmp_path, write(tmp_path, PROGRAM), "0")
    runs = tmp_path / "perfscope-runs" / "latest"
    (process,) = latest(tmp_path).processes
    assert passes(process)["timing"].artifact == "nsys/export.sqlite"
    kept = {file.name: file for file in (runs / "nsys").iterdir()}
    assert set(kept) == {"export.sqlite", "report.nsys-rep"}
    assert kept["report.nsys-rep"].stat().st_mode & 0o077 == 0
    assert "do not pass it on" in done.stderr
    rest = [file for file in runs.rglob("*") if file.is_file() and file.suffix != ".nsys-rep"]
    assert rest
    assert not [file for file in rest if b"hunter2" in file.read_bytes()]
    (trace,) = load_path(runs).traces
    (canned,) = load_path(tmp_path / "canned.sqlite").traces
    for table, rows in canned.rows.items():
        assert len(trace.rows[table]) == len(rows), table
    assert [trace.text(row) for row in trace.rows["kernels"]["name"]] == ["void gemm<float>(float*)"]
    settings = sqlite3.connect(kept["export.sqlite"]).execute("SELECT * FROM META_DATA_CAPTURE").fetchall()
    assert settings == [("PROCESS_0:COLLECT_CUDA_TRACE", "true")]


@pytest.mark.slow
def test_a_step_that_the_programs_end_cut_off_is_none(tmp_path: Path) -> None:
    export = small()
    export.range("perfscope", 0, None, event=75, domain=1)
    for number in range(3, 9):
        export.range(f"perfscope.step#{number}", number * 20, number * 20 + 15, event=START_END, domain=1)
    fake = put(tmp_path / "bin", export=export.write(tmp_path / "canned.sqlite"))
    program = "import perfscope, torch\nfor _ in range(8):\n    perfscope.step()\n"
    run(fake, tmp_path, write(tmp_path, program))
    (process,) = latest(tmp_path).processes
    assert passes(process)["timing"].steps is None  # this nsys is a fake: nothing listens, nothing could be marked
    assert process.untraced_step_ns == ()
    (trace,) = load_path(tmp_path / "perfscope-runs" / "latest").traces
    assert trace.rows["steps"]["number"].tolist() == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("leaves", "exports", "words", "reason"),
    [
        (".nsys-rep", False, (), "`nsys export` failed (exit 1): Exportation error: Version number is invalid"),
        (".qdstrm", True, (), "its importer was not found"),
        ("", True, (), "nsys recorded nothing: Generating a report"),
        ("", True, ("--steps", "5:6"), "nsys recorded nothing: the first of the chosen steps never began"),
    ],
)
def test_what_went_wrong_is_the_reason_why_the_pass_is_missing(
    tmp_path: Path, leaves: str, exports: bool, words: tuple[str, ...], reason: str
) -> None:
    canned = small().write(tmp_path / "canned.sqlite")
    fake = put(tmp_path / "bin", export=canned if exports else None, leaves=leaves)
    done = run(fake, tmp_path, *words, write(tmp_path, PROGRAM), "0")
    assert done.returncode == 0
    (process,) = latest(tmp_path).processes
    capture = passes(process)["timing"]
    assert capture.state == "missing"
    assert reason in str(capture.reason)
    assert reason in done.stderr


@pytest.mark.parametrize(
    ("options", "words", "said"),
    [
        ("\t-o, --output=\n", (), "nsys 2024.5.1 is too old: `nsys profile` has no --trace, --sample, --cpuctxsw"),
        (HELP.replace("--capture-range-end=", ""), ("--steps", "5:6"), "cannot record --steps alone"),
    ],
)
def test_an_nsys_that_is_too_old_starts_nothing(
    tmp_path: Path, options: str, words: tuple[str, ...], said: str
) -> None:
    done = run(put(tmp_path / "bin", options=options), tmp_path, *words, write(tmp_path, PROGRAM), "0")
    assert done.returncode == 125
    assert said in done.stderr
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "perfscope-runs").exists()


def test_without_nsys_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    env = environment(PATH=str(tmp_path / "bin"))
    done = plain("-m", "perfscope", "run", "--capture", "nsys", write(tmp_path, PROGRAM), "0", cwd=tmp_path, env=env)
    assert done.returncode == 125
    assert "--capture nsys: nsys is not on PATH" in done.stderr
    assert not (tmp_path / "made").exists()


def test_only_options_that_the_version_knows_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = installed(monkeypatch, put(tmp_path / "old"))
    assert command.arguments(old, CaptureOptions(level="deep"), Path("r"))[1:] == [
        "profile",
        "--trace=cuda,nvtx,osrt",
        "--sample=none",
        "--cpuctxsw=none",
        "--force-overwrite=true",
        "--wait=primary",
        "--output=r",
    ]
    more = HELP.replace("'osrt'", "'osrt', 'cudnn'") + "\t--cuda-graph-trace=\n\t--gpu-metrics-devices=\n"
    new = installed(monkeypatch, put(tmp_path / "new", options=more, counters="\t0: NVIDIA H100\n\tall: Select all"))
    deep = command.arguments(new, CaptureOptions(level="deep"), Path("r"))
    assert {"--trace=cuda,nvtx,osrt,cudnn", "--cuda-graph-trace=node", "--gpu-metrics-devices=all"} <= set(deep)
    light = command.arguments(new, CaptureOptions(level="light", steps=(5, 8)), Path("r"))
    assert {"--trace=cuda,nvtx", "--capture-range=nvtx", "--nvtx-capture=perfscope.capture@perfscope"} <= set(light)
    assert not [word for word in light if "metrics" in word]


@pytest.mark.parametrize(
    ("counters", "option"),
    [
        ("\t0: NVIDIA H100\n\tall: Select all", "--gpu-metrics-device"),
        ("NVIDIA GPUs not found, feature is not available", None),
        ("\t0: NVIDIA H100\nInsufficient privilege, see ERR_NVGPUCTRPERM", None),
    ],
)
def test_counters_are_asked_for_where_they_are_permitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counters: str, option: str | None
) -> None:
    fake = put(tmp_path / "bin", options=HELP + "\t--gpu-metrics-device=\n", counters=counters)
    assert installed(monkeypatch, fake).gpu_metrics == option


def test_one_nsys_is_around_all_processes_of_a_command(tmp_path: Path) -> None:
    export = Export()
    for index, pid in enumerate((100, 101, 102)):
        export.kernel("gemm", index * 100, index * 100 + 50, pid=pid)
    fake = put(tmp_path / "bin", export=export.write(tmp_path / "canned.sqlite"))
    done = run(fake, tmp_path, "--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert fake.profiled()[-2:] == ["-c", "exit 3"]
    assert len(load_path(tmp_path / "perfscope-runs" / "latest").traces) == 3


@pytest.mark.parametrize(("code", "interrupted", "told"), [(0, True, 130), (0, False, 0), (3, True, 3)])
def test_an_interrupt_that_nsys_says_nothing_of_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, interrupted: bool, told: int
) -> None:
    monkeypatch.setenv("PATH", put(tmp_path / "bin").path)
    ended = Ended(code=code, signal=None, interrupted=interrupted)
    assert NsysRun(CaptureOptions(capture="nsys")).program_result(ended).code == told
