"""When two variants are the same, and when an earlier one is not to be used again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from perfscope.analyzers.hardware.target_request import target_request
from perfscope.analyzers.hardware.target_text import parse_target
from perfscope.model.documents.compile_request import Limits, Request
from perfscope.profiler.ahead.common import build_key
from perfscope.profiler.ahead.common.build_key import sources_digest, variant_key


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "model.py").write_text("x = 1\n")
    (tmp_path / "data.bin").write_text("1")
    return tmp_path


def _digest(*arguments: str) -> str:
    found = sources_digest(("train.py", *arguments), module=False)
    assert found is not None
    return found


def _request(*arguments: str, target: str = "h100", memory: str | None = None) -> Request:
    asked = target_request(parse_target(target, memory), configured=True)
    limits = Limits(seconds=1, memory_bytes=1)
    return Request(framework="jax", arguments=arguments, module=False, target=asked, limits=limits)


def test_the_same_sources_have_the_same_digest_wherever_it_looks_twice(program: Path) -> None:
    assert _digest() == _digest()
    assert _digest() == _digest("--x", "1")


def test_a_changed_source_changes_it_and_data_that_nobody_names_does_not(program: Path) -> None:
    first, named = _digest(), _digest("--data=data.bin")
    (program / "data.bin").write_text("2")
    assert _digest() == first
    assert _digest("--data=data.bin") != named
    (program / "model.py").write_text("x = 2\n")
    assert _digest() != first


def test_runs_environments_and_hidden_folders_are_no_sources(program: Path) -> None:
    first = _digest()
    for folder in (".git", "perfscope-runs", "__pycache__", "env"):
        (program / folder).mkdir()
        (program / folder / "new.py").write_text("x = 1\n")
    assert _digest() != first
    (program / "env" / "pyvenv.cfg").write_text("")
    assert _digest() == first


def test_a_folder_that_is_too_large_is_not_told_apart(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_key, "MOST_FILES", 1)
    assert sources_digest(("train.py",), module=False) is None


def test_a_package_is_read_without_importing_it(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program / "pack").mkdir()
    (program / "pack" / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(program))
    assert sources_digest(("pack.train",), module=True) is not None


def test_what_decides_the_program_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    request = _request("train.py", "--seq", "1")
    key = variant_key(request, "s")
    assert key == variant_key(request, "s")
    assert key == variant_key(msgspec.structs.replace(request, limits=Limits(seconds=9, memory_bytes=9)), "s")
    assert key == variant_key(msgspec.structs.replace(request, folder="elsewhere"), "s")
    others = [
        variant_key(request, "t"),
        variant_key(_request("train.py", "--seq", "2"), "s"),
        variant_key(_request("train.py", "--seq", "1", target="h200"), "s"),
        variant_key(_request("train.py", "--seq", "1", memory="40GiB"), "s"),
        variant_key(msgspec.structs.replace(request, functions=("step",)), "s"),
    ]
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_latency_hiding_scheduler=true")
    others.append(variant_key(request, "s"))
    assert len({key, *others}) == 7
