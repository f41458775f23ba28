"""Compilers are found in folders and by their metadata, and one that does not fit is one clear line."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from perfscope.profiler.ahead.targets import plugins

pytest.importorskip("jax")
JAX = importlib.metadata.version("jax")


def _package(folder: Path, name: str, version: str, *files: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"")


def _cuda(folder: Path, version: str = JAX) -> None:
    _package(folder, "jax-cuda13-pjrt", version, "jax_plugins/xla_cuda13/xla_cuda_plugin.so")


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PERFSCOPE_PLUGINS", str(tmp_path))
    real = importlib.metadata.distribution

    def distribution(name: str) -> importlib.metadata.Distribution:
        if name.startswith(("jax-", "libtpu", "triton")):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    return tmp_path


def test_a_compiler_of_jaxs_version_in_a_folder_is_found(only: Path) -> None:
    _cuda(only)
    found = plugins.find("gpu-nvidia")
    assert isinstance(found, plugins.Plugin)
    assert found.library == only / "jax_plugins/xla_cuda13/xla_cuda_plugin.so"
    assert found.own_folder
    assert found.versions == {"jax-cuda13-pjrt": JAX}


def test_a_jax_that_programs_cannot_be_run_on_is_said_first(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cuda(only, "0.9.2")
    real = importlib.metadata.distribution
    old = importlib.metadata.PathDistribution(only / "jax-0.9.2.dist-info")
    _package(only, "jax", "0.9.2")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: old if name == "jax" else real(name))
    for kind in ("gpu-nvidia", "gpu-amd", "tpu"):
        found = plugins.find(kind)
        assert isinstance(found, plugins.MissingPlugin)
        assert not found.wrong
        assert found.reason == "jax 0.9.2 is too old, compiling ahead needs 0.10 or later"
        assert found.install == "pip install -U 'jax>=0.10'"


def test_one_of_another_version_is_named_with_both(only: Path) -> None:
    _cuda(only, "0.1.2")
    found = plugins.find("gpu-nvidia")
    assert isinstance(found, plugins.MissingPlugin)
    assert found.wrong
    assert f"jax-cuda13-pjrt 0.1.2 in {only.name} of PERFSCOPE_PLUGINS does not fit jax {JAX}" == found.reason
    assert found.install is not None
    assert f"jax-cuda13-pjrt=={JAX}" in found.install


def test_the_folder_that_fits_counts_though_another_comes_first(
    only: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _cuda(only / "old", "0.1.2")
    _cuda(only / "new")
    monkeypatch.setenv("PERFSCOPE_PLUGINS", f"{only / 'old'}:{only / 'new'}")
    found = plugins.find("gpu-nvidia")
    assert isinstance(found, plugins.Plugin)
    assert found.folder == only / "new"


def test_a_damaged_one_says_what_it_lacks(only: Path) -> None:
    _package(only, "jax-cuda13-pjrt", JAX)
    found = plugins.find("gpu-nvidia")
    assert isinstance(found, plugins.MissingPlugin)
    assert "lacks xla_cuda_plugin.so" in found.reason


def test_libtpu_must_be_what_jax_asks_for(only: Path) -> None:
    wanted = plugins.required_version("jax", "libtpu")
    assert wanted is not None
    _package(only, "libtpu", "0.0.1", "libtpu/libtpu.so")
    found = plugins.find("tpu")
    assert isinstance(found, plugins.MissingPlugin)
    assert f"which asks for libtpu{wanted}" in found.reason


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_nothing_there_is_a_reason_and_a_command(only: Path, kind: plugins.Kind) -> None:
    found = plugins.find(kind)
    assert isinstance(found, plugins.MissingPlugin)
    assert found.reason
    assert found.install


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("0.0.42.1", "==0.0.42.*", True),
        ("0.0.43.0", "==0.0.42.*", False),
        ("0.10.2", "<=0.10.2,>=0.10.1", True),
        ("0.10.3", "<=0.10.2,>=0.10.1", False),
        ("3.7.0", "==3.7.0", True),
        ("3.7.1", "==3.7.0", False),
    ],
)
def test_versions_are_held_against_what_is_asked(version: str, wanted: str, fits: bool) -> None:
    assert plugins._satisfies(version, wanted) is fits
