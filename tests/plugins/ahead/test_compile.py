"""The parent of the compiling child: however the child ends, the folder opens and lists what is missing."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from perfscope.model.documents import compile_manifest
from perfscope.model.documents.compile_manifest import Compiled, CompiledTarget
from perfscope.model.errors import NotStartedError, UsageError
from perfscope.model.untrusted_text import MASK
from perfscope.plugins.ahead.common import compile as compiling
from perfscope.plugins.ahead.common import scrub
from perfscope.plugins.ahead.common.compile import NothingCompiledError, compile_program
from perfscope.plugins.ahead.common.program import frameworks_of
from perfscope.plugins.ahead.request import Limits, Request, TargetRequest, parse_checkpoint

TARGET = TargetRequest(
    machine=CompiledTarget(
        asked="h100", device="H100 SXM", platform="gpu", count=1, topology="1x1x1", memory_bytes=80 << 30
    ),
    vendor="NVIDIA",
    config="",
)
HEAD = """
import json, os, sys, time, signal
asked = json.load(open(sys.argv[1]))
def say(event, **what):
    os.write(int(sys.argv[2]), (json.dumps({"event": event, **what}) + "\\n").encode())
def compiled(number):
    name = f"{number:02d}.jit_f.hlo.pb"
    os.makedirs(asked["folder"] + "/programs", exist_ok=True)
    open(asked["folder"] + "/programs/" + name, "wb").write(b"x")
    say("compiling", number=number, name="f")
    say("compiled", number=number, file="programs/" + name, name="jit_f", fingerprint="1")
say("loaded", versions={"jax": "1"}, notes=["a note"])
"""


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """Puts a program of the test's in the place of the child."""

    def be(body: str) -> None:
        file = tmp_path / "child.py"
        file.write_text(HEAD + textwrap.dedent(body))
        monkeypatch.setattr(compiling, "CHILD", file)

    return be


def _run(tmp_path: Path, seconds: float = 60, memory: int = 8 << 30) -> Compiled:
    request = Request(
        framework="jax", arguments=("train.py", "--token", "abc"), module=False, target=TARGET,
        limits=Limits(seconds=seconds, memory_bytes=memory),
    )  # fmt: skip
    return compile_manifest.load(compile_program(request, root=tmp_path / "runs"))


def test_what_the_child_says_is_in_the_manifest(child, tmp_path: Path) -> None:
    child("""
        place = {"file": "train.py", "line": 3}
        say("seen", programs=[{"name": "f", "place": place, "calls": 4}], notes=["made up"], stopped="it repeats")
        compiled(0)
        say("done")
    """)
    manifest = _run(tmp_path)
    assert manifest.complete
    assert manifest.command == ("train.py", "--token", MASK)
    (program,) = manifest.programs
    assert (program.calls, program.place) == (4, compile_manifest.CompiledLine(file="train.py", line=3))
    assert manifest.stopped == "it repeats"
    assert manifest.notes == ("a note", "made up")
    assert manifest.versions == {"jax": "1"}


def test_a_program_that_takes_the_compiler_down_costs_only_itself(child, tmp_path: Path) -> None:
    child("""
        say("seen", programs=[{"name": n, "place": None, "calls": 1} for n in "abc"], notes=[], stopped=None)
        for number in range(3):
            if number in asked["skipped"]:
                continue
            if number == 1:
                say("compiling", number=1, name="b")
                print("F0000 00:00.0 1 flags.cc:2] Unknown flag in XLA_FLAGS: --xla_no=1", flush=True)
                os.kill(os.getpid(), signal.SIGABRT)
            compiled(number)
        say("done")
    """)
    manifest = _run(tmp_path)
    assert [one.file for one in manifest.programs] == ["programs/00.jit_f.hlo.pb", "programs/02.jit_f.hlo.pb"]
    (lost,) = manifest.not_compiled
    assert lost.name == "b"
    assert lost.reason == "the compiler ended by SIGABRT: Unknown flag in XLA_FLAGS: --xla_no=1"
    assert manifest.complete


def test_programs_that_all_take_it_down_end(child, tmp_path: Path) -> None:
    child("""
        say("seen", programs=[{"name": str(n), "place": None, "calls": 1} for n in range(20)], notes=[], stopped=None)
        number = len(asked["skipped"])
        say("compiling", number=number, name=str(number))
        os.kill(os.getpid(), signal.SIGSEGV)
    """)
    with pytest.raises(NothingCompiledError, match=r"train\.py: 4 programs took the compiler down"):
        _run(tmp_path)
    (folder,) = [one for one in (tmp_path / "runs").iterdir() if not one.is_symlink()]
    held = compile_manifest.load(folder)
    assert not held.complete
    assert len(held.not_compiled) == 20


def test_out_of_time_keeps_what_is_compiled(child, tmp_path: Path) -> None:
    child("""
        say("seen", programs=[{"name": n, "place": None, "calls": 1} for n in "ab"], notes=[], stopped=None)
        compiled(0)
        say("compiling", number=1, name="b")
        time.sleep(600)
    """)
    manifest = _run(tmp_path, seconds=2)
    assert not manifest.complete
    assert len(manifest.programs) == 1
    assert "out of time" in manifest.not_compiled[0].reason
    assert "--limit" in manifest.notes[-1]


def test_out_of_memory_ends_it_and_all_that_it_started(child, tmp_path: Path) -> None:
    child("""
        import subprocess
        say("seen", programs=[{"name": n, "place": None, "calls": 1} for n in "ab"], notes=[], stopped=None)
        compiled(0)
        say("compiling", number=1, name="b")
        subprocess.run([sys.executable, "-c", "import time; x = b'x' * (300 << 20); time.sleep(600)"])
    """)
    manifest = _run(tmp_path, memory=200 << 20)
    assert "--host-memory" in manifest.not_compiled[0].reason
    assert len(manifest.programs) == 1


def test_a_program_that_fails_first_is_told_with_its_last_lines(child, tmp_path: Path) -> None:
    child("""
        failure = {"text": "ValueError: no data (train.py:7)", "lines": ["Traceback", "ValueError: no data"]}
        say("seen", programs=[], notes=[], stopped="it raised", failure=failure)
        say("done")
    """)
    with pytest.raises(NothingCompiledError, match=r"ValueError: no data \(train\.py:7\)") as caught:
        _run(tmp_path)
    assert caught.value.exit_code == 4
    assert caught.value.lines == ("Traceback", "ValueError: no data")


def test_a_child_that_dies_before_it_says_anything(child, tmp_path: Path) -> None:
    child("print('Fatal: no such thing', flush=True); os._exit(9)")
    with pytest.raises(NothingCompiledError, match="the process ended with code 9: Fatal: no such thing") as caught:
        _run(tmp_path)
    assert caught.value.lines == ("Fatal: no such thing",)


def test_lines_that_are_no_events_are_not_heard(child, tmp_path: Path) -> None:
    child("""
        os.write(int(sys.argv[2]), b"\\xff\\n[1]\\n{}\\nnull\\n")
        say("seen", programs=[{"name": "f", "place": None, "calls": 1}], notes=[], stopped=None)
        compiled(0)
        say("done")
    """)
    assert _run(tmp_path).complete


def test_words_names_and_lines() -> None:
    assert str(parse_checkpoint("full")) == "full"
    assert parse_checkpoint("dots_with_no_batch_dims_saveable").word == "dots"
    assert parse_checkpoint("nothing_saveable").word == "full"
    assert parse_checkpoint("names:qkv+hidden").names == ("qkv", "hidden")
    asked = parse_checkpoint("full@train.py:35@./model/block.py:8")
    assert str(asked) == "full@train.py:35@model/block.py:8"
    first, second = asked.spots
    assert first.is_at("project/train.py", 35)
    assert not first.is_at("project/retrain.py", 35)
    assert not first.is_at("train.py", 36)
    assert second.is_at("model/block.py", 8)
    assert not second.is_at("block.py", 8)


@pytest.mark.parametrize(
    "text",
    ["", "half", "full:a", "names:", "names:a++b", "full@train.py", "full@train.py:x", "full@", "full\n", "x" * 500],
)
def test_asked_wrongly_is_one_line(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--checkpoint [^\n]+$"):
        parse_checkpoint(text)


def _script(folder: Path, **modules: str) -> tuple[str, ...]:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return (str(folder / "train.py"),)


def test_the_import_of_an_own_module_counts(tmp_path: Path) -> None:
    words = _script(tmp_path, train="import model\n", model="def f():\n    import jax.numpy as jnp\n")
    assert frameworks_of(words, module=False) == ("jax",)


def test_both_are_found(tmp_path: Path) -> None:
    words = _script(tmp_path, train="import jax\nfrom torch import nn\n")
    assert frameworks_of(words, module=False) == ("jax", "torch")


def test_a_library_of_one_framework_counts_for_it(tmp_path: Path) -> None:
    assert frameworks_of(_script(tmp_path, train="import flax\n"), module=False) == ("jax",)


def test_an_installed_package_is_of_the_framework_it_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site-packages"
    for name, required in (("embedder", ("middleware>=2",)), ("middleware", ('jax; extra == "jax"', "torch>=2.0"))):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").touch()
        metadata = site / f"{name}-1.0.dist-info"
        metadata.mkdir()
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            "Version: 1.0",
            *(f"Requires-Dist: {one}" for one in required),
        ]
        (metadata / "METADATA").write_text("\n".join(lines) + "\n")
        (metadata / "top_level.txt").write_text(f"{name}\n")
    monkeypatch.syspath_prepend(str(site))
    assert frameworks_of(_script(tmp_path, train="import embedder\n"), module=False) == ("torch",)


def test_neither_is_none(tmp_path: Path) -> None:
    assert frameworks_of(_script(tmp_path, train="import json\nimport train\n"), module=False) == ()


def test_a_program_that_is_no_python_is_named_with_the_line(tmp_path: Path) -> None:
    with pytest.raises(NotStartedError, match=r"train\.py:2: invalid syntax"):
        frameworks_of(_script(tmp_path, train="import jax\nthis is no python\n"), module=False)


def test_a_module_that_is_no_python_imports_nothing(tmp_path: Path) -> None:
    words = _script(tmp_path, train="import torch\nimport model\n", model="this is no python\n")
    assert frameworks_of(words, module=False) == ("torch",)


@pytest.mark.parametrize("module", [True, False])
def test_a_program_that_is_not_there(module: bool) -> None:
    with pytest.raises(NotStartedError, match=r"no\.such\.thing: no such"):
        frameworks_of(("no.such.thing",), module=module)


def test_the_workloads() -> None:
    assert frameworks_of(("perfscope.workloads.jax.attention",), module=True) == ("jax",)
    assert frameworks_of(("perfscope.workloads.attention",), module=True) == ("torch",)


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
    monkeypatch.setenv("HOME", "/main")
    private = scrub.private_texts(tmp_path)
    assert scrub.masked(b"jit(f)/main/dot", private) == b"jit(f)/main/dot"
    assert scrub.masked(b" /main/secret.py", private) == b" *****/secret.py"
