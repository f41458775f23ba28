"""``perfscope advise memory`` from a path to its result: text, page, JSON, and invalid options."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.readers import load as loading
from perfscope.model.trace import Trace
from perfscope.plugins.memory_advice.step_model import StepModel
from perfscope.plugins.memory_advice.step_model_torch import torch_step_model
from tests.build import TraceBuilder
from tests.plugins.memory_advice.steps import layers


class Reader(ModuleType):
    """``STEP n``: a trace whose step has n layers; ``STEP 0``: one without an op graph."""

    @staticmethod
    def sniff(path: Path, head: bytes) -> bool:
        return head.startswith(b"STEP")

    @staticmethod
    def read(path: Path) -> Trace:
        count = int(path.read_text().split()[1])
        trace = TraceBuilder(path=str(path), recorded=frozenset({"op_graph"} if count else ())).build()
        if count:
            trace.seed(torch_step_model, model(count))
        return trace


def model(count: int) -> StepModel:
    return layers(count, held=1 << 20, activation=1 << 20, product=1 << 19, temporary=1 << 10)


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_readers", lambda: iter((Reader("fake"),)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "step.fake"
    file.write_text("STEP 6")
    return file


def test_text_has_the_plan_its_code_and_the_front(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "memory", str(path), "--budget", "8MiB"]) == 0
    out = capsys.readouterr().out
    assert "budget 8.00 MiB (given)" in out
    assert re.search(r"^ +today .*keep all activations$", out, re.MULTILINE)
    assert re.search(r"^ +recommended ", out, re.MULTILINE)
    assert "model.blocks[" in out
    assert "Modelled" in out
    assert all(len(line) <= 110 for line in out.splitlines() if "import" not in line)


def test_json_is_whole_and_consistent(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "memory", str(path), "--budget", "8MiB", "--devices", "4", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "perfscope.advice.memory/1"
    assert found["basis"] == "modelled"
    assert found["recommended"] in found["front"]
    assert found["recommended"]["fits"] is True
    assert found["recommended"]["needs_bytes"] <= 8 << 20
    assert any(plan["zero_level"] for plan in found["front"])
    for plan in found["front"]:
        assert plan["added_high_ns"] is None or plan["added_low_ns"] <= plan["added_high_ns"]
    file = tmp_path / "plans.json"
    assert run(["advise", "memory", str(path), "--json", str(file), "--quiet"]) == 0
    assert json.loads(file.read_text())["budget_bytes"] is None


def test_the_page_is_whole_and_asks_for_nothing(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plans.html"
    assert run(["advise", "memory", str(path), "--budget", "8MiB", "--html", str(file)]) == 0
    page = file.read_text()
    assert "default-src 'none'" in page
    assert page.count("<circle") >= page.count("<tr") - 1
    assert "recommended" in page
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", page)
    data = re.search(r'<script type="application/json" id="perfscope-advice">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["schema"] == "perfscope.advice.memory/1"


def test_names_of_a_stranger_are_escaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from msgspec.structs import replace

    evil = "Model.<script>alert(1)</script>\x1b[31m"
    strange = model(2)
    strange = replace(strange, regions=tuple(replace(one, name=evil, group=evil) for one in strange.regions))
    monkeypatch.setattr(f"{__name__}.model", lambda count: strange)
    (tmp_path / "step.fake").write_text("STEP 2")
    file = tmp_path / "plans.html"
    asked = ["advise", "memory", str(tmp_path / "step.fake"), "--budget", "2200k", "--html", str(file), "-q"]
    assert run(asked) == 0
    assert "<script>alert" not in file.read_text()
    assert "\x1b" not in file.read_text()


@pytest.mark.parametrize(
    "asked",
    [("--budget", "eighty"), ("--budget", "0"), ("--budget", "-3GiB"), ("--budget", "80GiBB"), ("--device", "abacus"),
     ("--devices", "0"), ("--budget", "1e3"), ("--html", "-")],
)  # fmt: skip
def test_asked_wrongly_is_one_line(path: Path, asked: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "memory", str(path), *asked]) == 2
    assert "perfscope" in capsys.readouterr().err


def test_a_trace_without_a_step_is_missing_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "step.fake").write_text("STEP 0")
    assert run(["advise", "memory", str(tmp_path / "step.fake")]) == 4
    err = capsys.readouterr().err
    assert "no op graph" in err
    assert len(err.strip().splitlines()) == 1


def test_the_trace_itself_is_not_written_over(path: Path) -> None:
    assert run(["advise", "memory", str(path), "--html", str(path)]) == 2
    assert path.read_text() == "STEP 6"
