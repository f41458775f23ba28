"""`perfscope compile` end to end: a program that runs without data, compiled for a GPU and a TPU that are not here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import perfscope
from perfscope.__main__ import run
from perfscope.analyzers.hlo.buffers import assigned_memory
from perfscope.analyzers.hlo.cost.module import hlo_costs
from perfscope.analyzers.readers.load import load_path
from perfscope.model.documents import compile_manifest
from perfscope.model.documents.compile_manifest import CheckpointSite, Compiled, CompiledLine
from perfscope.plugins.ahead.sweep.axes import is_reserved, parse_axes, variants
from tests.plugins.ahead.compilers import require, require_checkpoint

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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.aot
@pytest.mark.jax
def test_only_the_function_asked_for(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require("gpu-nvidia")
    assert _compile("-q", "--function", "train.py:step") == 0
    manifest = compile_manifest.load((project / "perfscope-runs" / "latest").resolve())
    assert [one.name for one in manifest.programs] == ["jit_step"]
    assert _compile("-q", "--function", "nothing") == 4
    said = capfd.readouterr().err
    assert "the requested functions were not called; the program calls " in said
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
            "perfscope: train.py: the program failed before it called a compiled function: OSError: no such data"
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
    monkeypatch.setenv("XDG_DATA_HOME", str(project / "none"))
    from perfscope.plugins.ahead.targets import plugins

    if isinstance(plugins.find("tpu"), plugins.Plugin):
        pytest.skip("libtpu is in the environment itself")
    assert _compile("--target", "v5e") == 4
    said = capfd.readouterr().err
    assert "no libtpu; `perfscope setup v5e` installs it" in said
    assert not (project / "perfscope-runs").exists()


PROGRAM = """
import functools
import sys
import jax
import jax.numpy as jnp


def layer(x, w):
    return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None


def loss(weights, x):
    body = layer if sys.argv[1] == "none" else jax.checkpoint(layer)
    return (jax.lax.scan(body, x, weights)[0].astype(jnp.float32) ** 2).mean()


@functools.partial(jax.jit, donate_argnums=0)
def step(weights, x):
    slopes = jax.grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, slopes)


weights = {"up": jnp.zeros((6, 128, 512)), "down": jnp.zeros((6, 512, 128))}
for _ in range(3):
    weights = step(weights, jnp.ones((256, 128)))
"""
SCAN = 14
"""Line of the scan."""

NOTHING = """
import jax, jax.numpy as jnp
step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: (x @ w).sum())(w))
w = step(jnp.zeros((64, 64)), jnp.ones((8, 64)))
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("jax")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "nothing.py").write_text(NOTHING)
    return tmp_path


def compiled(*words: str) -> tuple[Compiled, tuple[int, int, int]]:
    """Manifest of a step, its peak in bytes, its FLOPs and those that run again."""
    assert run(["compile", "-q", "--function", "step", *words]) == 0
    folder = Path("perfscope-runs/latest").resolve()
    (trace,) = load_path(str(folder)).traces
    (module,) = trace.hlo
    timeline = assigned_memory(module)
    assert timeline is not None
    cost = trace.fact(hlo_costs)[0]
    again = cost.phases["recompute"].flops if "recompute" in cost.phases else 0
    return compile_manifest.load(folder), (timeline.peak_bytes, cost.total.flops, again)


@pytest.mark.aot
@pytest.mark.jax
@pytest.mark.slow
def test_a_program_without_a_flag_for_it(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require("gpu-nvidia")
    own, none, full = {}, compiled("train.py", "none"), compiled("train.py", "full")
    own = {"none": none[1], "full": full[1]}
    assert own["full"][0] < 0.6 * own["none"][0]
    assert (own["none"][2], none[0].checkpoint) == (0, None)
    manifest, cost = compiled("--checkpoint", "full", "train.py", "none")
    assert cost == own["full"]
    assert manifest.programs[0].fingerprint == full[0].programs[0].fingerprint
    assert manifest.checkpoint is not None
    place = CompiledLine(file="train.py", line=SCAN)
    assert manifest.checkpoint.policy == "full"
    assert manifest.checkpoint.places == (CheckpointSite(kind="scan", how="wrapped", place=place, count=6),)
    manifest, cost = compiled("--checkpoint", "none", "train.py", "full")
    assert cost == own["none"]
    assert manifest.programs[0].fingerprint == none[0].programs[0].fingerprint
    manifest, cost = compiled("--checkpoint", f"dots@train.py:{SCAN}", "train.py", "none")
    assert own["full"][0] < cost[0] < own["none"][0]
    capfd.readouterr()
    assert run(["analyze", "latest"]) == 0
    assert f"--checkpoint dots@train.py:{SCAN}: the scan at train.py:{SCAN} (6 turns)" in " ".join(
        capfd.readouterr().out.split()
    )


@pytest.mark.aot
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.parametrize("workload", ["attention", "ssm"])
def test_workloads_at_a_small_size(here: Path, workload: str) -> None:
    require("gpu-nvidia")
    words = ("-m", f"perfscope.workloads.jax.{workload}", "--size", "tiny", "--layers", "3", "--device", "gpu")
    own = {policy: compiled(*words, "--policy", policy)[1] for policy in ("none", "full", "dots")}
    assert own["none"][2] < own["full"][2]
    for source, policy in (("none", "full"), ("none", "dots"), ("full", "none")):
        assert compiled("--checkpoint", policy, *words, "--policy", source)[1] == own[policy], (source, policy)


@pytest.mark.aot
@pytest.mark.jax
@pytest.mark.slow
def test_plans_are_verified_once(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require("gpu-nvidia")
    assert run(["compile", "-q", "train.py", "none"]) == 0
    found = []
    for _ in range(2):
        capfd.readouterr()
        assert run(["advise", "memory", "latest", "--verify", "--json", "-", "-q"]) == 0
        rows = json.loads(capfd.readouterr().out)["verified"]
        found.append({row["checkpoint"]: row for row in rows if row["checkpoint"]})
    first, second = found
    assert "full" in first  # dots is neither quicker nor leaner here
    assert not any(row["kept"] for row in first.values())
    assert all(row["kept"] for row in second.values())
    for word, row in first.items():
        assert row["compiled_peak_bytes"] == second[word]["compiled_peak_bytes"]
        assert row["folder"].startswith("verified/")
    assert first["full"]["compiled_peak_bytes"] == compiled("train.py", "full")[1][0]


@pytest.mark.aot
@pytest.mark.jax
@pytest.mark.slow
def test_a_sweep_over_policies(here: Path) -> None:
    require("gpu-nvidia")
    assert run(["compile", "--sweep", "checkpoint=none,full", "--function", "step", "train.py", "none"]) == 0
    (file,) = here.glob("perfscope-runs/*sweep*/sweep.json")
    document = json.loads(file.read_text())
    peaks = {one["settings"]["checkpoint"]: one["peak_bytes"] for one in document["variants"]}
    assert 0 < peaks["full"] < 0.6 * peaks["none"]
    assert document["axes"][0]["kind"] == "choice"
    manifests = [compile_manifest.load(file.parent / one["folder"]) for one in document["variants"]]
    assert [one.command for one in manifests] == [("train.py", "none")] * 2


@pytest.mark.aot
@pytest.mark.jax
def test_nothing_to_checkpoint_is_no_program(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    require_checkpoint()
    require("gpu-nvidia")
    assert run(["compile", "--checkpoint", "full", "nothing.py"]) == 4
    error = capfd.readouterr().err
    assert "nothing.py: --checkpoint full: nothing could be checkpointed: what it differentiates has no loop" in error
    (folder,) = (one for one in here.glob("perfscope-runs/*") if not one.is_symlink())
    assert compile_manifest.load(folder).programs == ()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--checkpoint", "half", "train.py", "none"], "--checkpoint half: no such policy; there are none, full, dots"),
        (["--checkpoint", "full@14", "train.py", "none"], "invalid line '14'; write full@train.py:35"),
        (["--sweep", "checkpoint=full,half", "train.py", "none"], "--checkpoint half: no such policy"),
        (["--framework", "torch", "--checkpoint", "full", "train.py", "none"], "--checkpoint is for JAX"),
    ],
)
def test_asked_wrongly(here: Path, capfd: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert run(["compile", *words]) == 2
    assert said in capfd.readouterr().err
    assert not list(here.glob("perfscope-runs/*-sweep-*/variants/*"))


def test_the_axis_is_the_program_s_only_where_it_has_a_place_for_it() -> None:
    axes = parse_axes(["checkpoint=none,full@train.py:3"])
    assert [one.arguments for one in variants(axes, ("train.py", "--lr", "1"))] == [("train.py", "--lr", "1")] * 2
    braced = ("train.py", "--resume={checkpoint}")
    assert not is_reserved("checkpoint", braced)
    assert [one.arguments[1] for one in variants(axes, braced)] == ["--resume=none", "--resume=full@train.py:3"]
