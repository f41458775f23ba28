"""Programs whose host works, waits or collects in every step are flagged at the line; their fixed twins are quiet."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_all
from perfscope.model.finding import Finding
from tests.session.programs import captured, write

TRAIN = {
    "torch": """
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(128, 512)

def train():
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

def save(step):
    torch.save(model.state_dict(), f"model-{step % 2}.pt")  # checkpoint
""",
    "jax": """
@jax.jit
def update(weights, batch):
    return weights - 1e-3 * jax.grad(lambda weights: jnp.mean(jnp.tanh(batch @ weights @ weights) ** 2))(weights)

weights, batch = jnp.ones((512, 512)), jnp.ones((512, 512))

def train():
    global weights
    weights = update(weights, batch)
    return weights.block_until_ready()

host = np.ones((2048, 2048))

def save(step):
    np.save(f"model-{step % 2}.npy", host)  # checkpoint
""",
}
HEAD = {
    "torch": "import torch\ntorch.set_num_threads(1)\n",
    "jax": "import jax, jax.numpy as jnp, numpy as np\n",
}
REST = """
import gc, json, logging, multiprocessing, sys, threading, time

logging.basicConfig(filename="train.log", level=logging.INFO)

def tokenize(text):
    return [hash(word + str(position)) % 50_000 for position, word in enumerate(text)]  # tokenizer

def spin():
    number = 0
    while True:
        for _ in range(1000): number = number * 7 % 1001  # lock

def do(kind, fixed, step):
    if kind == "tokenizer" and not (fixed and step):
        tokenize(["word"] * 30_000)
    if kind == "logging" and not (fixed and step % 50):
        logging.info(json.dumps({"step": step, "grads": list(range(40_000))}))  # logging
    if kind == "sleep" and not fixed:
        time.sleep(0.02)  # sleep
    if kind == "checkpoint" and not (fixed and step % 50):
        for _ in range(3): save(step)
    if kind == "lock":
        sum(range(100_000))
    if kind == "garbage" and not fixed:
        gc.collect()  # garbage

def main(kind, fixed, steps):
    keep = [[number] for number in range(400_000 if kind == "garbage" else 0)]
    if kind == "lock" and fixed:
        multiprocessing.get_context("fork").Process(target=spin, daemon=True).start()
    elif kind == "lock":
        threading.Thread(target=spin, name="metrics", daemon=True).start()
    for step in range(steps):
        do(kind, fixed, step)
        train()

main(sys.argv[1], sys.argv[2] == "fixed", int(sys.argv[3]))
"""
SUBJECTS = {
    "tokenizer": "host work",
    "logging": "saving and logging",
    "sleep": "sleeping",
    "checkpoint": "saves",
    "garbage": "garbage collection",
    "lock": "waiting for the interpreter's lock",
}
STEPS = 200
TRIES = 3
"""Captures of a busy machine, on which the rule abstains."""

FRAMEWORKS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in TRAIN]


def program(framework: str) -> str:
    return HEAD[framework] + REST.replace("def do(", TRAIN[framework] + "\ndef do(")


def analysis_of(folder: Path, framework: str, kind: str, twin: str, *options: str) -> Analysis:
    name = write(folder, program(framework))
    done = captured("-q", *options, name, kind, twin, str(STEPS), cwd=folder)
    assert done.returncode == 0, done.stderr
    (trace,) = load_all(folder / "perfscope-runs" / "latest")
    return analyze(trace)


def host_findings(analysis: Analysis) -> list[Finding]:
    return [finding for rule, finding in analysis.findings() if rule in ("host_bound", "checkpoint_stall")]


def line_of(framework: str, kind: str) -> int:
    return next(
        number for number, line in enumerate(program(framework).splitlines(), 1) if line.endswith(f"  # {kind}")
    )


def check(folder: Path, framework: str, kind: str, *options: str) -> None:
    for _ in range(TRIES):
        analysis = analysis_of(folder, framework, kind, "planted", *options)
        if analysis["host_bound"].status != "abstained":  # else the host waited for a core: again
            break
    findings = [one for one in host_findings(analysis) if one.subject.startswith(SUBJECTS[kind])]
    assert ("train.py", line_of(framework, kind)) in [(one.where.file, one.where.line) for one in findings]


@pytest.mark.slow
@pytest.mark.torch
def test_a_tokenizer_in_the_loop_is_flagged_at_its_line(tmp_path: Path) -> None:
    check(tmp_path, "torch", "tokenizer")


@pytest.mark.jax
@pytest.mark.slow
def test_a_sleep_in_the_loop_of_a_jax_program_is_flagged_at_its_line(tmp_path: Path) -> None:
    check(tmp_path, "jax", "sleep")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SUBJECTS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_is_flagged_at_its_line(tmp_path: Path, framework: str, kind: str) -> None:
    check(tmp_path, framework, kind, "--level", "light")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("kind", ["tokenizer", "sleep", "logging"])
def test_also_with_the_deepest_level(tmp_path: Path, kind: str) -> None:
    check(tmp_path, "torch", kind, "--level", "deep")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SUBJECTS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_fixed_twin_is_quiet(tmp_path: Path, framework: str, kind: str) -> None:
    findings = host_findings(analysis_of(tmp_path, framework, kind, "fixed", "--level", "light"))
    assert not [finding for finding in findings if finding.subject == SUBJECTS[kind]]


COMPILING = {
    "torch": """
import sys, torch
torch.set_num_threads(1)
torch._dynamo.config.recompile_limit = 64
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

@torch.compile(dynamic=False, backend="aot_eager")
def loss_of(batch):
    return model(batch).square().mean()

sizes = range(1, 41) if sys.argv[1] == "planted" else [40] * 40
for size in sizes:
    loss_of(torch.randn(size, 64)).backward()  # called
    optimizer.step()
    optimizer.zero_grad()
""",
    "jax": """
import sys, jax, jax.numpy as jnp
planted = sys.argv[1] == "planted"
scale = jax.jit(lambda batch, factor: jnp.tanh(batch @ batch) * factor)

@jax.jit
def update(weights, batch):
    return weights - 1e-3 * jnp.tanh(batch @ weights)

weights = batch = jnp.ones((512, 512))
for step in range(40):
    if planted:
        scale = jax.jit(lambda batch, factor, step=step: jnp.tanh(batch @ batch) * (factor + step))
    weights = update(weights, scale(batch, 1.0))  # called
    weights.block_until_ready()
""",
}
COMPILE_RULES = ("recompilation", "dynamic_shape_churn", "warmup_compile")


def compile_findings(folder: Path, framework: str, twin: str) -> list[tuple[str, Finding]]:
    write(folder, COMPILING[framework])
    done = captured("-q", "train.py", twin, cwd=folder)
    assert done.returncode == 0, done.stderr
    (trace,) = load_all(folder / "perfscope-runs" / "latest")
    return [(rule, finding) for rule, finding in analyze(trace).findings() if rule in COMPILE_RULES]


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_program_that_compiles_in_every_step_gets_one_finding_at_its_line(tmp_path: Path, framework: str) -> None:
    ((rule, finding),) = compile_findings(tmp_path, framework, "planted")
    source = COMPILING[framework].splitlines()
    line = next(
        n for n, text in enumerate(source, 1) if text.startswith("@torch.compile") or text.endswith("  # called")
    )
    assert rule == {"torch": "dynamic_shape_churn", "jax": "recompilation"}[framework]
    assert Path(finding.where.file or "").name == "train.py"
    assert finding.where.line == line


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_its_twin_compiles_before_the_measured_steps(tmp_path: Path, framework: str) -> None:
    assert not compile_findings(tmp_path, framework, "fixed")
