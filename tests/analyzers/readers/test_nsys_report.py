"""Reports of Nsight Systems: exported by the ``nsys`` on PATH, or refused with the command to run elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.load import load
from perfscope.analyzers.readers.nsys_sqlite import export as export_module
from perfscope.profiler.errors import DataError
from tests.analyzers.readers.nsys_export import small

HEAD = b"NVIDIA Tegra Profiler Report 2025@5@1@121-1v0.\x00\x01"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "train.nsys-rep"
    path.write_bytes(HEAD)
    return path


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program ``nsys`` as the only one on PATH but the shell's own."""
    tools = folder / "tools"
    tools.mkdir()
    program = tools / "nsys"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        load(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line


def test_a_report_is_exported_and_read(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small().write(tmp_path / "made.sqlite")
    install(tmp_path, monkeypatch, f'[ "$1 $2 $3 $4" = "export --type sqlite --output" ] && cp {made} "$5"')
    (trace,) = load(report)
    assert len(trace.rows["kernels"]) == 1
    assert trace.source.path == str(report)


def test_without_nsys_it_says_where_to_run_what(report: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    said = refused(report)
    assert "a report of Nsight Systems by 2025.5.1 is read by `nsys` alone, which is not on PATH" in said
    assert "nsys export --type sqlite --output train.sqlite train.nsys-rep" in said


def test_an_older_nsys_is_named(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        '[ "$1" = --version ] && { echo "NVIDIA Nsight Systems version 2022.4.2.1-df9881f"; exit 0; }\n'
        'echo "Exportation error: Version number is invalid: 2025@5@1@121" >&2; exit 1'
    )
    install(tmp_path, monkeypatch, script)
    assert "written by 2025.5.1, newer than the nsys here (2022.4.2.1)" in refused(report)


def test_another_failure_is_passed_on(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, 'echo "Processing..."; echo "disk full" >&2; exit 3')
    assert "`nsys export` failed (exit 3): disk full" in refused(report)


def test_an_export_that_does_not_end_is_ended(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SECONDS", 0.2)
    install(tmp_path, monkeypatch, "exec sleep 60")
    assert "took more than" in refused(report)


@pytest.mark.corpus
def test_real_reports_without_nsys(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = [refused(path) for path in sorted((corpus / "nsys_rep").iterdir())]
    assert len(said) == 2
    assert "Systems by 2025.5.1 is read" in said[0]
    assert "Systems is read" in said[1]  # an older report does not tell its version
