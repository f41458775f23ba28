"""``perfscope setup``: compilers in the user's folder, with an installer that makes small stand-ins."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.model.errors import DataError
from perfscope.plugins.ahead.targets import plugins

INSTALLER = """
import pathlib, re, sys

words = sys.argv[1:]
target = pathlib.Path(words[words.index("--target") + 1])
assert "--no-deps" in words
name, version = re.match(r"([a-z0-9-]+)(?:==([0-9.]+))?", words[-1]).groups()
version = (version or "1.0").rstrip(".")
print("installing", *words)
if pathlib.Path(__file__).with_name("fails").exists():
    sys.exit(3)
files = {
    "jax-cuda13-pjrt": "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
    "jax-rocm7-pjrt": "jax_plugins/xla_rocm7/xla_rocm_plugin.so",
    "libtpu": "libtpu/libtpu.so",
    "triton": "triton/__init__.py",
}
(target / files[name]).parent.mkdir(parents=True)
(target / files[name]).touch()
folder = target / f"{name.replace('-', '_')}-{version}.dist-info"
folder.mkdir()
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of data; no compiler is anywhere else."""
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("PERFSCOPE_PLUGINS", raising=False)
    real = importlib.metadata.distribution

    def distribution(name: str) -> importlib.metadata.Distribution:
        if name.startswith(("jax-", "libtpu", "triton")):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    script = tmp_path / "installer.py"
    script.write_text(INSTALLER)
    monkeypatch.setattr(plugins, "installer", lambda: [sys.executable, str(script)])
    return tmp_path / "data" / "perfscope" / "plugins"


@pytest.mark.parametrize(
    ("target", "kind"),
    [("h100", "gpu-nvidia"), ("A100", "gpu-nvidia"), ("v5e", "tpu"), ("v6e:2x4", "tpu"), ("mi300", "gpu-amd"),
     ("mi355x", "gpu-amd"), ("torch", "torch")],
)  # fmt: skip
def test_it_is_installed_into_a_folder_of_its_own_and_found(
    target: str, kind: plugins.Kind, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = plugins.find(kind)
    assert isinstance(before, plugins.MissingPlugin)
    assert before.install == f"perfscope setup {plugins.SETUP_NAMES[kind]}"
    assert run(["setup", target]) == 0
    out, err = capfd.readouterr()
    assert out == ""
    assert "ready: " in err
    found = plugins.find(kind)
    assert isinstance(found, plugins.Plugin)
    assert found.own_folder
    assert [found.folder] == list(data.iterdir()), "nothing else is left behind"
    assert "PERFSCOPE_PLUGINS" not in os.environ
    assert run(["setup", target]) == 0
    assert "installing" not in capfd.readouterr().err, "it is there already"


def test_folders_that_a_variable_names_come_first(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["setup", "-q", "torch"]) == 0
    (other,) = data.iterdir()
    other.rename(tmp_path / "mine")
    assert run(["setup", "-q", "torch"]) == 0
    monkeypatch.setenv("PERFSCOPE_PLUGINS", str(tmp_path / "mine"))
    found = plugins.find("torch")
    assert isinstance(found, plugins.Plugin)
    assert found.folder == tmp_path / "mine"


def test_what_is_of_another_version_of_jax_is_not_taken(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(["setup", "-q", "h100"]) == 0
    (folder,) = data.iterdir()
    folder.rename(folder.with_name(folder.name.replace("jax-", "jax-0.0.")))
    assert isinstance(plugins.find("gpu-nvidia"), plugins.MissingPlugin)


def test_an_installer_that_fails_leaves_nothing(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fails").touch()
    assert run(["setup", "v5e"]) == 4
    assert "libtpu" in capfd.readouterr().err.splitlines()[-1]
    assert list(data.iterdir()) == []


def test_remove(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["setup", "-q", "h100", "torch"]) == 0
    assert len(list(data.iterdir())) == 2
    assert run(["setup", "--remove", "h100"]) == 0
    assert isinstance(plugins.find("gpu-nvidia"), plugins.MissingPlugin)
    assert isinstance(plugins.find("torch"), plugins.Plugin)
    assert run(["setup", "--remove", "h100"]) == 0


def test_without_a_target_it_lists_them(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["setup", "-q", "h100"]) == 0
    capfd.readouterr()
    assert run(["setup"]) == 0
    lines = capfd.readouterr().out.splitlines()[1:]
    assert {line.split()[0]: "ready" in line for line in lines} == {
        "h100": True, "v5e": False, "mi300": False, "torch": False,
    }  # fmt: skip


def test_a_name_that_is_no_target(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["setup", "h10o"]) == 2
    assert "did you mean" in capfd.readouterr().err


def test_a_framework_that_is_missing_is_not_installed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", _absent)
    with pytest.raises(DataError, match=r"jax is not installed.*pip install 'perfscope\[jax\]'"):
        plugins.install("tpu", announce=print)


def _absent(name: str) -> importlib.metadata.Distribution:
    raise importlib.metadata.PackageNotFoundError(name)


def test_uv_stands_in_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "find_spec", lambda _: None)
    monkeypatch.setattr(plugins.shutil, "which", lambda name: f"/bin/{name}")
    assert plugins.installer() == ["/bin/uv", "pip", "install", "--python", sys.executable]
    monkeypatch.setattr(plugins.shutil, "which", lambda _: None)
    with pytest.raises(DataError, match="neither pip nor uv"):
        plugins.installer()


def test_compile_offers_it_and_does_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import jax\njax.jit(lambda x: x + 1)(1.0)\n")
    asked: list[plugins.Kind] = []

    def stop(kind: plugins.Kind, *, announce: object) -> plugins.Plugin:
        asked.append(kind)
        raise DataError("stop here")

    monkeypatch.setattr(plugins, "install", stop)
    for words in (["--target", "v5e"], ["--target", "mi300x"], ["--target", "h100", "--framework", "torch"]):
        assert run(["compile", "--setup", *words, "train.py"]) == 4
    assert run(["compile", "--setup", "--target", "h100", "--sweep", "policy=none,full", "train.py"]) == 4
    assert asked == ["tpu", "gpu-amd", "torch", "gpu-nvidia"]
