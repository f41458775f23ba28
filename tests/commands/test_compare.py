"""``perfscope compare`` from paths to exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.readers import load as loading
from perfscope.model.trace import Trace
from tests.compare.runs import gpu_run, host_run


class Reader(ModuleType):
    """``STEPS KIND``: a small recording."""

    @staticmethod
    def sniff(path: Path, head: bytes) -> bool:
        return head.startswith(b"STEPS")

    @staticmethod
    def read(path: Path) -> Trace:
        kind = path.read_text().split()[1]
        return host_run() if kind == "host" else gpu_run(item=kind == "item", steps=8)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(loading, "_readers", lambda: iter([Reader("steps")]))
    for kind in ("plain", "item", "host"):
        (tmp_path / kind).write_text(f"STEPS {kind}")
    (tmp_path / "broken").write_text("nothing of the kind")
    return {kind: str(tmp_path / kind) for kind in ("plain", "item", "host", "broken")}


def test_a_regression_is_told_and_the_code_is_0(paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", paths["plain"], paths["item"]]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("perfscope: regression")
    assert said.err == ""


@pytest.mark.parametrize(
    ("base", "head", "gates", "code"),
    [
        ("plain", "item", ["regression"], 1),
        ("item", "plain", ["regression"], 0),
        ("plain", "plain", ["regression", "finding:low"], 0),
        ("plain", "item", ["finding:low"], 1),
        ("item", "plain", ["finding:low"], 0),
        ("plain", "plain", ["inconclusive"], 1),
        ("plain", "item", ["speed"], 2),
        ("plain", "broken", [], 4),
        ("plain", "gone", [], 4),
    ],
)
def test_exit_codes(paths: dict[str, str], base: str, head: str, gates: list[str], code: int) -> None:
    asked = [part for gate in gates for part in ("--fail-on", gate)]
    assert run(["compare", paths[base], paths.get(head, "/no/such/place"), *asked]) == code


def test_strict_ends_with_3_where_a_time_was_not_judged(paths: dict[str, str]) -> None:
    assert run(["compare", paths["plain"], paths["plain"], "--strict"]) == 3
    assert run(["compare", paths["plain"], paths["item"], "--strict", "--fail-on", "regression"]) == 1


def test_a_failed_gate_is_named(paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    run(["compare", paths["plain"], paths["item"], "--fail-on", "regression"])
    assert "gate not met: host syncs a step: regression" in capsys.readouterr().err


def test_json_beside_the_text(paths: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert run(["compare", paths["plain"], paths["item"], "--json", str(out), "--fail-on", "regression"]) == 1
    held = json.loads(out.read_text())
    assert held["headline"] == "regression"
    assert held["failed"] == ["host syncs a step: regression"]
    assert capsys.readouterr().out.startswith("perfscope: regression")


def test_json_alone(paths: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", paths["plain"], paths["item"], "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "perfscope.compare/1"


@pytest.mark.corpus
def test_a_report_never_goes_over_its_input(corpus: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json.gz"
    held = (corpus / "kineto" / "TraceLens__h100_bert-small.json.gz").read_bytes()
    trace.write_bytes(held)
    assert run(["compare", str(trace), str(trace), "--json", str(trace)]) == 2
    assert trace.read_bytes() == held


@pytest.mark.corpus
def test_two_kinds_are_refused_in_one_line(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, program = (
        corpus / "kineto" / "TraceLens__h100_bert-small.json.gz", corpus / "aot" / "gpu_attn_naive.hlo.txt.gz",
    )  # fmt: skip
    assert run(["compare", str(trace), str(program)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "compare two of one kind" in said.err
