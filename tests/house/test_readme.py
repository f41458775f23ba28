"""README's commands, each run as written where README's installation is all that there is.

A wheel is built and installed into a fresh environment with the extras that README names. torch, jax and what they need
are not downloaded again (2 GB): the packages of this environment are linked into a folder on the path of the fresh one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.conftest import REPOSITORY

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
FRAMEWORKS = ("torch", "jax")
LIMIT_S = 600

PLACEHOLDERS = {"NAME": "main", "RUN": "latest", "FOLDER": "perfscope-runs"}
"""Words in commands of README that stand for a value."""

NOT_RUN = {
    "make demo": "installs from an index",
    "make test": "runs this suite",
    "make lint": "checks this repository",
    "perfscope attach PID": "needs a program that runs: tests/plugins/attach starts one",
    "perfscope advise memory": "names the command below it",
    "perfscope compare TORCH_RUN JAX_RUN": "needs runs of a model in both frameworks: tests/plugins/port makes them",
    "perfscope setup h100": "downloads a compiler of 700 MB",
    "perfscope compile --target h100 -m perfscope.workloads.jax.attention --device gpu --size gpu": "needs it",
    "perfscope run torchrun --nproc-per-node 8 train.py": "eight processes: minutes on two cores",
    "perfscope try train.py --epochs 1": "the command after it is the same with two interventions",
}
"""Command -> why it is not run here."""

EXPECTED = {
    "perfscope compile dump.hlo.pb --target v5e": (4, "perfscope setup v5e"),
    "perfscope run --capture nsys train.py": (125, "nsys is not on PATH"),
    "perfscope mcp FOLDER": (125, "pip install"),
    "perfscope lower train.py": (4, "compile"),
}
"""Command -> exit code and text, where something that README does not install is missing, or the program here compiles
nothing. All others return 0."""


@dataclass(frozen=True)
class Command:
    """A command of README, or a Python block, below a heading."""

    heading: str
    line: str
    python: bool = False


def commands(readme: str = README) -> Iterator[Command]:
    """Commands in blocks and in text, and blocks of Python, in order."""
    for section in re.split(r"^##? ", readme, flags=re.MULTILINE):
        heading, _, body = section.partition("\n")
        pieces = re.split(r"^```(\w*)\n(.*?)^```\n", body, flags=re.MULTILINE | re.DOTALL)
        for index in range(0, len(pieces), 3):
            for span in re.findall(r"`((?:perfscope|make) [^`]+)`", pieces[index]):
                words = " ".join(span.split())
                if words.count(" ") > 1 or words.startswith("make "):  # a verb alone is a mention
                    yield Command(heading, words)
            if index + 2 < len(pieces):
                yield from _of_block(heading, pieces[index + 1], pieces[index + 2])


def _of_block(heading: str, language: str, block: str) -> Iterator[Command]:
    if language == "python":
        yield Command(heading, block, python=True)
    elif language in ("sh", "console"):
        lines = (line.removeprefix("$ ").partition("  #")[0].strip() for line in block.splitlines())
        yield from (Command(heading, line) for line in lines if line)


ALL = tuple(commands())
RUN = tuple(one for one in ALL if one.line not in NOT_RUN and not one.line.startswith("pip install"))
HEADINGS = tuple(dict.fromkeys(one.heading for one in RUN))

TRAIN = """\
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
epochs = parser.parse_args().epochs
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
for step in range(60 * epochs):
    x = torch.randn(64, 64)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
SERVER = """\
import time

import torch

model = torch.nn.Linear(64, 64).eval()
while True:
    with torch.no_grad():
        model(torch.randn(8, 64))
    time.sleep(0.05)
"""
MODEL_TORCH = """\
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)), (torch.ones(3, 6),)
"""
MODEL_JAX = """\
import jax.numpy as jnp

def make():
    weights = [{"kernel": jnp.ones((6, 8)), "bias": jnp.ones(8)}, {"kernel": jnp.ones((8, 4)), "bias": jnp.ones(4)}]

    def model(weights, x):
        hidden = jnp.tanh(x @ weights[0]["kernel"] + weights[0]["bias"])
        return hidden @ weights[1]["kernel"] + weights[1]["bias"]

    return model, weights, (jnp.ones((3, 6)),)
"""

CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 16, "vocab_size": 128_256, "tie_word_embeddings": True,
}  # fmt: skip


def linked(names: tuple[str, ...], folder: Path) -> None:
    """Link these packages and what they need from this environment into ``folder``."""
    wanted, done = list(names), set()
    while wanted:
        name = wanted.pop()
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        if package.name in done:
            continue
        done.add(package.name)
        for file in package.files or ():
            top = Path(str(package.locate_file(file.parts[0])))
            if file.parts[0] not in ("..", "__pycache__") and top.exists() and not (folder / top.name).exists():
                (folder / top.name).symlink_to(top)
        needs = map(Requirement, package.requires or ())
        wanted += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]


def install(folder: Path, wheel: Path) -> Path:
    """Make the environment; return the folder of its programs. Skips if the index does not answer."""
    venv, frameworks = folder / "venv", folder / "frameworks"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    frameworks.mkdir()
    linked(FRAMEWORKS, frameworks)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "frameworks.pth").write_text(f"{frameworks}\n")
    for one in ALL:
        if one.line.startswith("pip install"):
            line = re.sub(r"'?\.(\[[\w,]+\])?'?$", lambda match: f"'{wheel}{match[1] or ''}'", one.line)
            done = subprocess.run(["bash", "-c", f"{venv}/bin/{line}"], capture_output=True, text=True)
            if "No matching distribution found" in done.stderr or "Could not fetch" in done.stderr:
                pytest.skip("the package index does not answer")
            assert done.returncode == 0, done.stdout + done.stderr
    return venv / "bin"


def prepare(work: Path) -> None:
    """Write the files that README's commands name: programs, a trace, runs, a repository with two commits."""
    work.mkdir()
    files = {"train.py": TRAIN, "server.py": SERVER, "model_torch.py": MODEL_TORCH, "model_jax.py": MODEL_JAX}
    for name, text in {**files, ".gitignore": "*\n!*.py\n"}.items():
        (work / name).write_text(text)
    fixtures = REPOSITORY / "fixtures"
    shutil.copy(fixtures / "cpu-moe-loop" / "rank00000" / "timing.pt.trace.json.gz", work / "trace.json.gz")
    for name, fixture in (("before", "cpu-moe-loop"), ("after", "cpu-moe-index-add")):
        shutil.copytree(fixtures / fixture, work / "perfscope-runs" / name)
    (work / "perfscope-runs" / "latest").symlink_to("before")
    (work / "dump.hlo.pb").write_bytes(hlo())
    (work / "config.json").write_text(json.dumps(CONFIG))
    (work / "model.safetensors").write_bytes(weights())
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*who, "commit", "-qm", "one"), ("checkout", "-qb", "b")):
        subprocess.run(["git", *words], cwd=work, check=True)
    (work / "train.py").write_text(f"{TRAIN}print('done')\n")
    subprocess.run(["git", *who, "commit", "-qam", "two"], cwd=work, check=True)


def hlo() -> bytes:
    """A program before optimization, as XLA dumps it."""
    import jax

    lowered = jax.jit(lambda x: jax.numpy.tanh(x @ x)).lower(jax.ShapeDtypeStruct((8, 8), "float32"))
    held: bytes = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    return held


def weights() -> bytes:
    """The weights of ``MODEL_TORCH`` as a safetensors file."""
    held: dict[str, Any] = {}
    exec(MODEL_TORCH, held)
    model, _ = held["make"]()
    arrays = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    head, at = {}, 0
    for name, value in model.state_dict().items():
        head[name] = {"dtype": "F32", "shape": [*value.shape], "data_offsets": [at, at + len(arrays[name])]}
        at += len(arrays[name])
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(arrays.values())


def environment(bin_folder: Path) -> dict[str, str]:
    """Variables of a fresh shell."""
    kept = {key: value for key, value in os.environ.items() if key in ("LANG", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")}
    path = f"{bin_folder}:/usr/local/bin:/usr/bin:/bin"
    return {**kept, "PATH": path, "HOME": str(bin_folder.parent), "PERFSCOPE_CACHE": "off"}


def problem_of(one: Command, work: Path, bin_folder: Path) -> str:
    """Run a command; ``''`` if it ended as it should."""
    line = re.sub(r"\b(NAME|RUN|FOLDER)\b", lambda match: PLACEHOLDERS[match[0]], one.line)
    if line.startswith("perfscope serve "):
        return served(line, work, bin_folder)
    words = [str(bin_folder / "python"), "-c", line] if one.python else ["bash", "-c", line]
    done = subprocess.run(
        words, cwd=work, env=environment(bin_folder), capture_output=True, text=True, timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    code, text = EXPECTED.get(one.line, (0, ""))
    if done.returncode == code and text in done.stderr + done.stdout and "Traceback" not in done.stderr:
        return ""
    return f"$ {line}\nexit code {done.returncode}, not {code}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"


def served(line: str, work: Path, bin_folder: Path) -> str:
    """Start the server on a free port, fetch its first page as a browser does, and end it."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {line} --port 0"],
        cwd=work,
        env=environment(bin_folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            told = process.stdout.readline()
            address = re.search(r"http://\S+", told)
            if address is None:
                return f"$ {line}\nno address: {told}"
            cookies = urllib.request.HTTPCookieProcessor()
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)
            with direct.open(address[0], timeout=LIMIT_S) as page:
                return "" if page.status == 200 and page.read() else f"$ {line}\nno page"
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def bin_folder(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    for framework in FRAMEWORKS:
        pytest.importorskip(framework)
    (wheel,) = released.glob("*.whl")
    return install(tmp_path_factory.mktemp("fresh"), wheel)


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.jax
@pytest.mark.parametrize("heading", HEADINGS)
def test_every_command_runs_as_written(heading: str, bin_folder: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    prepare(work)
    problems = [problem_of(one, work, bin_folder) for one in RUN if one.heading == heading]
    assert not any(problems), "\n\n".join(filter(None, problems))


def test_commands_are_found_and_exceptions_are_real() -> None:
    lines = [one.line for one in ALL]
    assert len(lines) > 35
    assert "perfscope run --for 30s server.py" in lines, "a span over two lines"
    assert "perfscope analyze latest --what-if 'aten::mm x0.5'" in lines
    assert sum(one.python for one in ALL) == 2
    assert [line for line in (*NOT_RUN, *EXPECTED) if line not in lines] == []
    assert [one.line for one in commands("## A\n```sh\na --b    # c\n```\n`perfscope runs` `perfscope x y`\n")] == [
        "a --b", "perfscope x y"
    ]  # fmt: skip
