"""What is kept names no folder of this machine and holds no secret."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from perfscope.profiler.ahead.common import scrub


def test_files_are_named_from_the_project_or_their_package_on(tmp_path: Path) -> None:
    library = tmp_path / "venv/lib/python3.11/site-packages"
    pattern = re.compile(scrub.source_pattern(tmp_path / "project", [str(library)]))
    assert pattern.sub("", str(tmp_path / "project/src/train.py")) == "src/train.py"
    assert pattern.sub("", str(library / "flax/linen/module.py")) == "flax/linen/module.py"
    assert pattern.sub("", "/somewhere/else/tool/run.py") == "tool/run.py"
    assert pattern.sub("", "train.py") == "train.py"


def test_secrets_and_folders_become_stars_of_the_same_length(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_API_KEY", "sk-0123456789abcdef")
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    private = scrub.private_texts(tmp_path / "project")
    data = f"x{tmp_path}/project/a.py sk-0123456789abcdef {tmp_path}/someone/b".encode()
    cleaned = scrub.masked(data, private)
    assert len(cleaned) == len(data)
    assert b"sk-0123" not in cleaned
    assert str(tmp_path / "project").encode() not in cleaned
    assert b"someone" not in cleaned


def test_a_short_home_is_no_scope_of_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/root")
    private = scrub.private_texts(tmp_path)
    assert scrub.masked(b"jit(f)/root/dot", private) == b"jit(f)/root/dot"
    assert scrub.masked(b" /root/secret.py", private) == b" *****/secret.py"
