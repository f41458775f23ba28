"""``perfscope compile --checkpoint`` end to end: programs that are not edited, against programs with the policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.facts.hlo_cost import hlo_costs
from perfscope.analyzers.facts.hlo_memory import memory_timeline
from perfscope.analyzers.readers.load import load_path
from perfscope.model.documents import compile_manifest
from perfscope.model.documents.compile_manifest import CheckpointSite, Compiled, CompiledLine
from perfscope.profiler.ahead.sweep.axes import is_reserved, parse_axes, variants
from tests.aot import require

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
    timeline = memory_timeline(module)
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
        (["--checkpoint", "full@14", "train.py", "none"], "'14' is no line; write full@train.py:35"),
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
