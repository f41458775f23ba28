"""``perfscope compile --sweep`` as it is typed; real compilers are used where they are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.plugins.ahead.targets import plugins

PROGRAM = """
import argparse, sys
import jax
import jax.numpy as jnp

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=128)
parser.add_argument("--act", default="tanh")
asked = parser.parse_args()
if asked.act == "broken":
    raise ValueError("no such activation")
if asked.act == "endless":
    while True:
        pass

@jax.jit
def step(w, x):
    h = x @ w
    y = jnp.tanh(h) if asked.act == "tanh" else jax.nn.gelu(jnp.tanh(h) @ w)
    return w - 0.1 * (x.T @ y)

w = jnp.zeros((asked.n, asked.n))
for _ in range(3):
    w = step(w, jnp.ones((asked.n, asked.n)))
"""

TORCH = """
import argparse
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=512)
parser.add_argument("--policy", default="none")
asked = parser.parse_args()
layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(4)).cuda()
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
for _ in range(6):
    x = torch.randn(asked.batch, 256, device="cuda")
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False) if asked.policy == "full" else layer(x)
    x.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

needs_triton = pytest.mark.skipif(
    not isinstance(plugins.find("torch"), plugins.Plugin), reason="no triton here: PERFSCOPE_PLUGINS names none"
)
needs_xla = pytest.mark.skipif(
    not isinstance(plugins.find("gpu-nvidia"), plugins.Plugin),
    reason="no compiler for NVIDIA GPUs here: PERFSCOPE_PLUGINS names none",
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sweep", "n"], "write NAME=VALUES"),
        (["--sweep", "n=1..9/0"], "must rise"),
        (["--sweep", "target=h100,h1000"], "did you mean h100"),
        (["--sweep", "memory=40"], "must be from 1 MiB"),
        (["--sweep", "n=1..100/1", "--sweep", "m=1..9/1"], "more than 64 values"),
        (["--sweep", "n=128", "--fail-on", "high"], "--fail-on"),
        (["--fit", "act=tanh,gelu"], "only whole numbers"),
        (["--fit", "n=1..8", "--sweep", "n=1,2"], "it is also in --sweep"),
        (["--jobs", "2"], "belong to --sweep"),
        (["--html", "x.html"], "belong to --sweep"),
    ],
)
def test_asked_wrongly_is_one_line(here: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compile", *words, "train.py"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (here / "perfscope-runs").exists()


def test_without_a_compiler_it_is_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax")
    absent = plugins.MissingPlugin(kind="gpu-nvidia", reason="no compiler", install="pip install one")
    monkeypatch.setattr(plugins, "find", lambda kind: absent)
    assert run(["compile", "--sweep", "n=128,256", "train.py"]) == 4
    assert capsys.readouterr().err == "perfscope: h100 cannot be compiled for here: no compiler; pip install one\n"
    assert not (here / "perfscope-runs").exists()


@pytest.mark.aot
@pytest.mark.jax
@pytest.mark.slow
@needs_xla
def test_a_sweep_end_to_end_and_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compile", "--sweep", "act=tanh,gelu,broken", "--sweep", "n=128,256", "--sweep", "memory=2MiB,1GiB"]
    assert run([*words, "--json", "sweep.json", "--html", "sweep.html", "train.py"]) == 0
    text = capsys.readouterr().out
    found = json.loads((here / "sweep.json").read_text())
    states = {tuple(one["settings"].values()): one["state"] for one in found["variants"]}
    assert {state for key, state in states.items() if key[0] == "broken"} == {"failed"}
    assert {state for key, state in states.items() if key[0] != "broken" and key[2] == "1GiB"} == {"fits"}
    assert all("no such activation" in one["reason"] for one in found["variants"] if one["state"] == "failed")
    assert {axis["name"]: axis["kind"] for axis in found["axes"]} == {"act": "choice", "n": "size", "memory": "machine"}
    plain = next(one for one in found["variants"] if one["settings"] == {"act": "tanh", "n": "256", "memory": "1GiB"})
    assert plain["programs"] == ["jit_step"]
    assert plain["peak_bytes"] > 3 * 256 * 256 * 4
    assert plain["on_front"]
    assert "act=gelu" in text
    assert "4 of 12 variants were not compiled" in text
    assert (here / "sweep.html").read_text().startswith("<!DOCTYPE html>")
    (folder,) = (here / "perfscope-runs").iterdir()  # a sweep is not a run that `latest` could point to
    assert (folder / plain["folder"] / "compile.json").is_file()

    assert run([*words, "--json", "again.json", "train.py"]) == 0
    capsys.readouterr()
    again = json.loads((here / "again.json").read_text())
    assert [one["reused"] for one in again["variants"]] == [one["state"] != "failed" for one in found["variants"]]
    for mine, its in zip(found["variants"], again["variants"], strict=True):
        assert {key: mine[key] for key in ("step_low_ns", "peak_bytes", "state")} == {
            key: its[key] for key in ("step_low_ns", "peak_bytes", "state")
        }

    (here / "train.py").write_text(PROGRAM.replace("0.1", "0.2"))
    assert run(["compile", "--sweep", "act=tanh", "--json", "new.json", "train.py"]) == 0
    assert not json.loads((here / "new.json").read_text())["variants"][0]["reused"]


@pytest.mark.aot
@pytest.mark.jax
@pytest.mark.slow
@needs_xla
def test_the_largest_size_that_fits_is_found_in_few_compilations(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compile", "--fit", "n=64..1024/64", "--sweep", "memory=1MiB,8MiB", "train.py"]
    assert run([*words[:-1], "--json", "fit.json", "train.py"]) == 0
    text = capsys.readouterr().out
    found = json.loads((here / "fit.json").read_text())
    assert found["complete"]
    tried: dict[str, dict[int, str]] = {}
    for one in found["variants"]:
        tried.setdefault(one["settings"]["memory"], {})[int(one["settings"]["n"])] = one["state"]
    for memory, states in tried.items():
        assert len(states) <= 5, memory  # of 16 sizes
        fits = max(size for size, state in states.items() if state == "fits")
        assert min(size for size, state in states.items() if state == "does not fit") == fits + 64
        assert f"n={fits}" in text
    assert any("need not grow evenly" in note for note in found["notes"])
    assert run([*words[:-1], "--json", "again.json", "train.py"]) == 0
    again = json.loads((here / "again.json").read_text())
    assert all(one["reused"] for one in again["variants"])


@pytest.mark.aot
@pytest.mark.slow
@needs_triton
def test_a_sweep_of_a_pytorch_program_has_a_front(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "train_torch.py").write_text(TORCH)
    assert run(["compile", "--sweep", "policy=none,full", "--json", "sweep.json", "train_torch.py"]) == 0
    found = json.loads((here / "sweep.json").read_text())
    none, full = found["variants"]
    assert none["programs"] == full["programs"] == ["eager step"]
    assert (none["state"], full["state"]) == ("fits", "fits")
    assert full["peak_bytes"] < none["peak_bytes"]
    assert full["step_low_ns"] > none["step_low_ns"]  # it computes again
    assert none["on_front"]
    assert full["on_front"]
    assert "policy" in capsys.readouterr().out


@pytest.mark.aot
@pytest.mark.slow
@needs_triton
def test_the_largest_batch_of_a_pytorch_program(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "train_torch.py").write_text(TORCH)
    words = ["compile", "--memory", "40MiB", "--fit", "batch=128..1024/128", "--json", "fit.json", "train_torch.py"]
    assert run(words) == 0
    assert "need not grow evenly" in json.loads((here / "fit.json").read_text())["notes"][0]
    states = {int(one["settings"]["batch"]): one for one in json.loads((here / "fit.json").read_text())["variants"]}
    assert len(states) <= 4
    fits = max(size for size, one in states.items() if one["state"] == "fits")
    refused = min(size for size, one in states.items() if one["state"] == "does not fit")
    assert refused == fits + 128
    assert states[fits]["peak_bytes"] <= 40 << 20 < states[refused]["peak_bytes"]
    assert f"fits up to batch={fits} on 40.0 MiB; batch={refused} needs" in capsys.readouterr().out


@pytest.mark.aot
@pytest.mark.jax
@pytest.mark.slow
@needs_xla
def test_an_interrupt_keeps_what_is_done(here: Path) -> None:
    command = [sys.executable, "-m", "perfscope", "compile", "--sweep", "act=tanh,endless", "--jobs", "1", "train.py"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("perfscope: 1 of 2: act=tanh")
        began = _children(process.pid, within=60.0)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    (folder,) = [one for one in (here / "perfscope-runs").iterdir() if not one.is_symlink()]
    found = json.loads((folder / "sweep.json").read_text())
    assert [one["state"] for one in found["variants"]] == ["fits", "not reached"]
    assert not found["complete"]
    assert "the same command goes on with them" in out
    assert began
    assert _left(began, within=20.0) == []


def _left(pids: list[int], *, within: float) -> list[int]:
    """Processes that still exist after a while: a killed one leaves the table when its new parent reaps it."""
    until = time.monotonic() + within
    while pids and time.monotonic() < until:
        pids = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        os.sched_yield()
    return pids


def _children(pid: int, *, within: float) -> list[int]:
    """Processes below one, as soon as there are some."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        parents = {}
        for place in Path("/proc").glob("[0-9]*/stat"):
            try:
                head, _, rest = place.read_bytes().rpartition(b")")
                parents[int(head.split()[0])] = int(rest.split()[1])
            except (OSError, ValueError, IndexError):
                continue
        found = [one for one, parent in parents.items() if parent == pid]
        if found:
            return found + [one for one, parent in parents.items() if parent in found]
        os.sched_yield()
    return []
