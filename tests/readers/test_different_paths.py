"""Paths that lead to one place are read once."""

from __future__ import annotations

from pathlib import Path

from perfscope.analyzers.readers.load import different


def test_a_run_is_not_counted_again_through_the_link_to_the_newest(tmp_path: Path) -> None:
    for name in ("1-first", "2-second"):
        (tmp_path / name).mkdir()
    (tmp_path / "latest").symlink_to("2-second")
    paths = sorted(tmp_path.iterdir())
    assert [Path(path).name for path in different(paths)] == ["1-first", "2-second"]
    assert [Path(path).name for path in different([tmp_path / "latest"])] == ["latest"]
