"""`perfscope compare` of two kinds and `compare port`, from paths to exit codes: compiled programs and plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from perfscope.__main__ import run
from perfscope.dashboards.web.pages import PageRequest
from perfscope.dashboards.web.server.shelf import Shelf
from perfscope.dashboards.web.server.workshop import Workshop
from perfscope.plugins.port.document import load
from tests.conftest import REPOSITORY

PROGRAMS, PLANS = REPOSITORY / "fixtures" / "programs-h100", REPOSITORY / "fixtures" / "plans-h100"
TORCH, JAX = str(PLANS / "attention-naive"), str(PROGRAMS / "attention-naive")


def test_a_plan_and_a_compiled_program_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {form: tmp_path / f"port.{form}" for form in ("json", "markdown", "html")}
    outputs = [word for form, file in files.items() for word in (f"--{form}", str(file))]
    assert run(["compare", TORCH, JAX, *outputs]) == 0
    text = capsys.readouterr().out
    assert "Layers without a partner" in text  # the recordings are of different sizes
    assert "(modelled)" in text
    ledger = load(files["json"])  # checks the sums
    assert (ledger.a.framework, ledger.b.framework) == ("torch", "jax")
    assert {one.side for one in ledger.unpaired} == {"a", "b"}
    assert files["markdown"].read_text().startswith("### perfscope: ")
    assert "blocks.*.attention.qkv" in files["html"].read_text()


def test_two_programs_of_one_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", "port", JAX, f"{JAX}-fp32", "--json", "-"]) == 0
    ledger = json.loads(capsys.readouterr().out)
    first = ledger["differences"][0]
    assert (first["side"], first["kind"]) == ("b", "wider products")
    assert first["file"].endswith(".py")
    assert first["other_line"] is not None
    assert ledger["a"]["basis"] == "modelled"
    assert ledger["unpaired"] == []


def test_recomputation_of_the_faster_side_comes_after_the_layer_that_explains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    none, full = (str(PROGRAMS / f"attention-policy-{policy}") for policy in ("none", "full"))
    assert run(["compare", "port", none, full, "--json", "-"]) == 0
    reason, again, *_ = json.loads(capsys.readouterr().out)["differences"]
    assert (reason["side"], reason["kind"], reason["explains"]) == ("a", "slower layer", True)
    assert (again["side"], again["kind"]) == ("b", "second forward")
    assert again["flops"] > 0


@pytest.mark.parametrize("words", [["--fail-on", "regression"], ["--junit", "x.xml"], ["--github"]])
def test_gates_and_forms_that_do_not_exist_are_usage_errors(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", TORCH, JAX, *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_sides_that_cannot_be_compared_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.hlo.txt"
    bad.write_text("HloModule cut")
    for words in (["compare", "port", JAX, str(bad)], ["compare", "port", JAX, str(tmp_path / "absent")]):
        assert run(words) == 4
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1


def asked(place: Path, **parameters: str) -> PageRequest:
    workshop = cast(Workshop, None)
    return PageRequest(page="port", parameters=parameters, base_path="/", shelf=Shelf((place,)), workshop=workshop)


def test_the_page_shows_both_sides_and_names_a_damaged_file(tmp_path: Path) -> None:
    pytest.importorskip("dash")
    from perfscope.plugins.port import page

    def shown(place: Path) -> str:
        return json.dumps(page.layout(asked(place), None), default=lambda part: part.to_plotly_json())

    assert "compare TORCH_RUN JAX_RUN" in shown(tmp_path)
    file = tmp_path / "port.json"
    assert run(["compare", TORCH, JAX, "--json", str(file), "-q"]) == 0
    text = shown(file)
    assert "FLOPs A" in text
    assert "FLOPs B" in text
    assert "attention.py" in text
    assert "port.json" in page.mark(asked(tmp_path))
    file.write_bytes(file.read_bytes().replace(b'"rows"', b'"lines"'))
    assert "FLOPs A" not in shown(file)
