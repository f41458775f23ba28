"""`perfscope compile` end to end: a program that runs without data, compiled for a GPU and a TPU that are not here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import perfscope
from perfscope.__main__ import run
from perfscope.model.documents import compile_manifest
from tests.aot import require

SCRIPT = """
import sys
import jax
import jax.numpy as jnp
from helper import WIDTH

assert sys.argv[1:] == ["--lr", "0.1", "--name=x"], sys.argv
assert sys.stdin.read() == ""


@jax.jit
def init(key):
    return jax.random.normal(key, (WIDTH, WIDTH), jnp.bfloat16)


def step(w, x):
    def loss(w):
        with jax.named_scope("mlp"):
            return (jax.nn.gelu(x @ w) ** 2).mean()
    return w - float(sys.argv[2]) * jax.grad(loss)(w)


step = jax.jit(step, donate_argnums=0)
w = init(jax.random.key(0))
for number in range(100):
    w = step(w, jnp.ones((WIDTH, WIDTH), jnp.bfloat16))
print("value", w[0, 0])
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("jax")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("WIDTH = 256\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")
    return folder


def _compile(*words: str) -> int:
    return run(["compile", *words, "train.py", "--lr", "0.1", "--name=x"])


@pytest.mark.aot
@pytest.mark.jax
def test_a_script_for_an_h100(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require("gpu-nvidia")
    assert _compile("--target", "h100", "--memory", "40GiB", "--json", "out.json") == 0
    shown = capfd.readouterr()
    assert "compiled for H100 SXM" in shown.out
    assert "40.0 GiB at 3.35 TB/s" in shown.out
    assert "value" not in shown.out
    assert shown.err == ""
    folder = (project / "perfscope-runs" / "latest").resolve()
    manifest = compile_manifest.load(folder)
    by_name = {one.name: one for one in manifest.programs}
    assert by_name["jit_step"].place == compile_manifest.CompiledLine(file="train.py", line=16)
    assert by_name["jit_step"].alias_bytes == 256 * 256 * 2
    assert manifest.complete
    assert manifest.command == ("train.py", "--lr", "0.1", "--name=x")
    assert manifest.target.memory_bytes == 40 << 30
    kept = {file.name.split(".", 2)[2] for file in (folder / "programs").iterdir() if ".jit_step." in file.name}
    assert kept == {
        "hlo.pb", "before_optimizations.hlo.pb", "priority_fusion_dump.txt", "thunk_sequence.txt", "passes.textproto",
    }  # fmt: skip
    for file in folder.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert str(project).encode() not in data, file
            assert b"sk-0123456789" not in data, file
            assert b"site-packages" not in data or file.suffix == ".html", file
    trace = perfscope.load(folder)
    assert trace.source.format == "compiled"
    assert trace.target is not None
    assert trace.target.memory_bytes == 40 << 30
    lines = {one.line for module in trace.hlo for _, one in module.instructions() if one.file == "train.py"}
    assert 19 in lines
    report = json.loads((project / "out.json").read_text())
    assert report["sources"][0]["format"] == "compiled"
    assert run(["analyze", "latest", "--format", "json"]) == 0
    assert run(["runs"]) == 0
    assert "compiled for h100" in capfd.readouterr().out


@pytest.mark.aot
@pytest.mark.jax
def test_only_the_function_asked_for(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require("gpu-nvidia")
    assert _compile("-q", "--function", "train.py:step") == 0
    manifest = compile_manifest.load((project / "perfscope-runs" / "latest").resolve())
    assert [one.name for one in manifest.programs] == ["jit_step"]
    assert _compile("-q", "--function", "nothing") == 4
    said = capfd.readouterr().err
    assert "none of the functions asked for was called; the program calls " in said
    assert "jit_step" in said


UNEVEN = """
import jax, jax.numpy as jnp

@jax.jit
def step(x, projection, out, up):  # 8 x 196 rows: no multiple of the tiles of XLA's own kernels for products
    q, k, v = jnp.split((x @ projection).reshape(8, 196, 16, 192), 3, -1)
    x = x + jax.nn.dot_product_attention(q, k, v).reshape(8, 196, 1024) @ out
    return x + jax.nn.gelu(x @ up)

step(*(jnp.ones(shape) for shape in ((8, 196, 1024), (1024, 3072), (1024, 1024), (1024, 1024))))
"""


@pytest.mark.aot
@pytest.mark.jax
def test_products_that_xla_s_own_kernels_refuse_are_left_to_the_library(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    require("gpu-nvidia")
    (project / "uneven.py").write_text(UNEVEN)
    assert _compile("--target", "h100", "uneven.py") == 0
    out = capfd.readouterr().out
    assert "compiled with all products by the library" in " ".join(out.split())
    assert "jit_step" in out


@pytest.mark.aot
@pytest.mark.jax
def test_two_builds_have_one_fingerprint_and_no_difference(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require("gpu-nvidia")
    assert _compile("-q", "-o", "first", "--function", "step") == 0
    (project / "train.py").write_text("# a line more\n" + SCRIPT)
    assert _compile("-q", "-o", "second", "--function", "step") == 0
    first, second = (compile_manifest.load((project / name / "latest").resolve()) for name in ("first", "second"))
    assert [one.fingerprint for one in first.programs] == [one.fingerprint for one in second.programs]
    assert run(["compare", "first/latest", "second/latest"]) == 0
    assert "no change" in capfd.readouterr().out


@pytest.mark.aot
@pytest.mark.jax
def test_a_script_for_a_slice_of_tpus(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require("tpu")
    assert _compile("--target", "v5e:2x4", "--function", "step") == 0
    shown = capfd.readouterr()
    assert "compiled for 8 TPU v5e (2x4)" in shown.out
    assert shown.err == ""  # libtpu's warnings stay with the child
    trace = perfscope.load((project / "perfscope-runs" / "latest").resolve())
    assert {module.platform for module in trace.hlo} == {"tpu"}


@pytest.mark.aot
@pytest.mark.jax
def test_a_program_that_fails(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require("gpu-nvidia")
    (project / "train.py").write_text("import jax\ndef load():\n    raise OSError('no such data')\nload()\n")
    assert _compile() == 4
    said = capfd.readouterr().err
    assert "raise OSError" in said
    assert (
        said.rstrip()
        .splitlines()[-1]
        .startswith(
            "perfscope: train.py: the program failed before it called anything that is compiled: OSError: no such data"
        )
    )


@pytest.mark.aot
@pytest.mark.jax
def test_a_flag_that_xla_does_not_know(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    require("gpu-nvidia")
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    assert _compile() == 4
    assert "Unknown flag" in capfd.readouterr().err.splitlines()[-1]


def test_what_is_asked_wrongly(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["compile"]) == 2
    assert run(["compile", "--", "ls"]) == 2
    assert run(["compile", "absent.py"]) == 125
    assert run(["compile", "--target", "h1000", "train.py"]) == 2
    assert run(["compile", "--memory", "40", "train.py"]) == 2
    assert run(["compile", "--host-memory", "x", "train.py"]) == 2
    (project / "plain.py").write_text("print(1)\n")
    assert run(["compile", "plain.py"]) == 2
    assert "imports neither jax nor torch" in capfd.readouterr().err
    assert not (project / "perfscope-runs").exists()


def test_without_a_compiler_the_line_says_how_to_get_one(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFSCOPE_PLUGINS", str(project / "none"))
    from perfscope.profiler.ahead.targets import plugins

    if isinstance(plugins.find("tpu"), plugins.Plugin):
        pytest.skip("libtpu is in the environment itself")
    assert _compile("--target", "v5e") == 4
    said = capfd.readouterr().err
    assert "no libtpu; pip install --no-deps --target FOLDER 'libtpu" in said
