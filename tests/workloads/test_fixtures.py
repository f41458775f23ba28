"""Committed recordings: each names its origin, matches its description, and names no machine."""

from __future__ import annotations

import getpass
import gzip
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.op_graph import read_op_graph

REPOSITORY = Path(__file__).resolve().parents[2]
FIXTURES = REPOSITORY / "fixtures"
FOLDERS = sorted(path for path in FIXTURES.iterdir() if path.is_dir() and path.name != "__pycache__")
RECORDINGS = [path for path in FOLDERS if any(path.glob("rank[0-9]*"))]
KEYS = {"command", "device", "driver", "date", "licence", "origin", "names_found", "versions", "sha256"}
TWINS = {
    "cpu-attention-naive": "cpu-attention-sdpa",
    "cpu-moe-loop": "cpu-moe-index-add",
    "cpu-ssm-scan": "cpu-ssm-parallel",
}
LARGEST = 400_000
"""Bytes of a recording made on a CPU: the whole set must stay cheap to clone."""


def recorder() -> Any:
    spec = importlib.util.spec_from_file_location("record_gpu", FIXTURES / "record_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["record_gpu"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def files_of(recording: Path) -> dict[str, Path]:
    return {
        path.relative_to(recording).as_posix(): path
        for path in sorted(recording.rglob("*"))
        if path.is_file() and path.name != "provenance.toml"
    }


def content_of(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def provenance_of(recording: Path) -> dict[str, Any]:
    return tomllib.loads((recording / "provenance.toml").read_text())


def test_what_is_no_recording_of_a_run_is_compiled_programs_or_noise() -> None:
    others = [path.name for path in FOLDERS if path not in RECORDINGS]
    assert others == [
        "advice", "h100-programs", "lower-torch", "noise", "plans-h100", "programs-h100", "programs-v5e"
    ]  # fmt: skip


def test_every_defect_and_its_twin_are_there() -> None:
    assert {*TWINS, *TWINS.values()} <= {recording.name for recording in RECORDINGS}


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name)
def test_its_provenance(recording: Path) -> None:
    provenance = provenance_of(recording)
    assert set(provenance) == KEYS
    assert provenance["names_found"] == []
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", provenance["date"])
    assert {"python", "torch", "perfscope"} <= set(provenance["versions"])
    assert provenance["sha256"] == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files_of(recording).items()
    }


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name)
def test_it_names_no_machine(recording: Path) -> None:
    for name, path in files_of(recording).items():
        content = content_of(path).decode()
        # Paths that start at the root, but for the system's own libraries.
        absolute = set(re.findall(r'(?<=")/(?!usr/|lib)[\w.-]+/[\w./-]+', content))
        assert absolute == set(), name
        assert set(re.findall(r'"host_name":\s*"([^"]*)"', content)) <= {"localhost"}, name
        assert f'"{os.uname().nodename}"' not in content or os.uname().nodename == "localhost", name
        assert f"/{getpass.getuser()}/" not in content, name


@pytest.mark.parametrize(
    "recording", [path for path in RECORDINGS if path.name.startswith("cpu-")], ids=lambda p: p.name
)
def test_it_is_small(recording: Path) -> None:
    assert sum(path.stat().st_size for path in files_of(recording).values()) < LARGEST


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name)
def test_its_op_graph_reads_and_names_the_workload(recording: Path) -> None:
    (path,) = [path for name, path in files_of(recording).items() if name.endswith("structure.opgraph.json.gz")]
    graph = read_op_graph(path)
    assert not graph.truncated
    assert {op.file for op in graph.ops if op.phase == "forward" and op.module} <= {
        f"perfscope/workloads/{name}.py" for name in ("attention", "moe", "ssm", "training")
    }


@pytest.mark.parametrize("defect", sorted(TWINS))
def test_its_lines_are_those_of_the_source_today(defect: str) -> None:
    # Rules are tested on these lines: after a change of the workloads the recordings must be made again.
    workload = defect.split("-")[1]
    source = (REPOSITORY / "perfscope" / "workloads" / f"{workload}.py").read_text().splitlines()
    (line,) = [number for number, text in enumerate(source, start=1) if "# defect:" in text]
    lines = {}
    for name in (defect, TWINS[defect]):
        graph = read_op_graph(FIXTURES / name / "rank00000" / "structure.opgraph.json.gz")
        lines[name] = {op.line for op in graph.ops if op.file == f"perfscope/workloads/{workload}.py"}
    assert line in lines[defect]
    assert line not in lines[TWINS[defect]]


@pytest.mark.slow
@pytest.mark.torch
def test_the_recorder_runs_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, str(FIXTURES / "record_gpu.py"), str(tmp_path), "--dry-run", "--pack"]
    chosen = ["--only", "ssm-parallel", "--only", "moe-index-add", "--prefix", "dry-"]
    done = subprocess.run([*command, *chosen], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("dry-ssm-parallel", "dry-moe-index-add"):
        assert set(provenance_of(tmp_path / name)) == KEYS
        assert "rank00000/structure.opgraph.json.gz" in provenance_of(tmp_path / name)["sha256"]
    assert (tmp_path / "recordings.tar").exists()
    assert subprocess.run([*command, *chosen], capture_output=True, check=False).returncode == 1  # overwrites nothing


def run_with_files(folder: Path, sizes: dict[str, int]) -> Path:
    for name, size in sizes.items():
        (folder / name).write_bytes(b"x" * size)
    return folder


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with_files(tmp_path, {"run.json": 10, "timing.pt.trace.json.gz": 50, "detail.pt.trace.json.gz": 100})
    fitting = recorder()._fitting
    assert len(fitting(run, 160)) == 3
    assert [path.name for path in fitting(run, 159)] == ["run.json", "timing.pt.trace.json.gz"]
    assert "detail.pt.trace.json.gz left out, 100 bytes" in capsys.readouterr().out
    assert fitting(run, 59) is None


def test_time_that_is_spent_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recorder().main([str(tmp_path), "--dry-run", "--seconds", "0", "--only", "moe-loop"]) == 0
    assert "moe-loop: left out, the time budget of 0 s is spent" in capsys.readouterr().out


def test_names_of_the_machine_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f'{{"host_name": "{os.uname().nodename}", "path": "{Path.home()}/x"}}')
    (tmp_path / "b.json").write_text('{"host_name": "localhost-of-nobody"}')
    names_in = recorder()._names_in
    assert {"host name", "home folder"} <= set(names_in(tmp_path / "a.json", "/no-such-scratch"))
    assert names_in(tmp_path / "b.json", "/no-such-scratch") == []


def test_every_recording_is_of_a_variant_or_defect_that_exists() -> None:
    import importlib

    from perfscope.workloads import options
    from perfscope.workloads.jax import options as jax_options

    plan = recorder().PLAN
    assert len({recording.name for recording in plan}) == len(plan)
    for recording in plan:
        pytest.importorskip(recording.framework)
        module = importlib.import_module(f"perfscope.workloads.{recording.workload}")
        if recording.workload == "transformer":  # has its own flags
            asked = module.parse(recording.arguments)
        else:
            parse = (jax_options if recording.framework == "jax" else options).parse
            asked = parse("", module.VARIANTS, module.SIZES, recording.arguments)
        assert asked.variant == recording.arguments[1]
