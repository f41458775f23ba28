"""The index of a run folder."""

from __future__ import annotations

import shutil
from fnmatch import fnmatchcase
from pathlib import Path

from perfscope.dashboards.report.run_index import _FILES, NAME, index_of, write_index
from tests.conftest import REPOSITORY


def test_every_file_of_our_recordings_is_known() -> None:
    files = [
        path.relative_to(manifest.parent).as_posix()
        for manifest in (REPOSITORY / "fixtures").rglob("run.json")
        for path in manifest.parent.rglob("*")
        if path.is_file() and path.name != "provenance.toml"
    ]
    assert len(files) > 100
    assert [name for name in files if not any(fnmatchcase(name, row[0]) for row in _FILES)] == []


def test_files_have_rows_and_absent_ones_have_none(tmp_path: Path) -> None:
    run = tmp_path / "perfscope-runs" / "a-run"
    shutil.copytree(REPOSITORY / "fixtures" / "cpu-attention-sdpa", run)
    (run / ".alive").touch()
    write_index(run)
    text = (run / NAME).read_text()
    assert "| `rank00000/timing.pt.trace.json.gz` |" in text
    assert "xplane" not in text
    assert ".alive" not in text
    assert "perfscope export perfscope-runs/a-run --to perfetto" in text
    assert str(tmp_path) not in text, "no folder of the machine"


def test_files_of_many_ranks_are_one_row(tmp_path: Path) -> None:
    for rank in range(3):
        folder = tmp_path / f"rank{rank:05d}"
        folder.mkdir()
        (folder / "process.json").touch()
    assert "| `rank*/process.json`, 3 files |" in index_of(tmp_path)


def test_a_run_with_all_stages_names_the_command_for_them(tmp_path: Path) -> None:
    assert "| `perfscope lower --stages PROGRAM ARGS...`, or of this run after" in index_of(tmp_path)
    (tmp_path / "xla-dump-0").mkdir()
    assert f"| `perfscope lower --stages {tmp_path.name}` |" in index_of(tmp_path)
