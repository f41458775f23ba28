"""``perfscope plan`` as it is typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import jsonschema
import pytest

from perfscope.__main__ import run
from perfscope.model.errors import DataError
from perfscope.plugins.plan.document import Plan, json_schema, load

SIZES = "name=small,layers=8,hidden=1024,heads=16,kv_heads=4,ffn=4096,vocab=32000"
BASIC = ["plan", "--model", SIZES, "--target", "h100x8", "--global-batch", "32", "--sequence", "2048"]


def test_plan_in_all_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("plan.json", "plan.md", "plan.html")]
    words = [*BASIC, "--json", str(files[0]), "--markdown", str(files[1]), "--html", str(files[2]), "--price", "2"]
    assert run(words) == 0
    printed = capsys.readouterr().out
    assert "small on 8 H100 SXM" in printed
    assert "run it with micro-batch" in printed
    assert "price of 1M tokens" in files[1].read_text()
    assert "Exchanges of the first mesh" in printed
    document = json.loads(files[0].read_text())
    jsonschema.validate(document, json_schema())
    assert isinstance(load(tmp_path), Plan)
    assert files[1].read_text().startswith("### small on 8 H100 SXM")
    assert "<svg" in files[2].read_text()
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(DataError):
        load(tmp_path)


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["plan", "--target", "h100x8"], 2, "nothing to plan"),
        ([*BASIC[:5], "--sequence", "2048"], 2, "--global-batch is missing"),
        ([*BASIC[:7]], 2, "--sequence is missing"),
        ([*BASIC, "--precision", "fp4"], 2, "must be one of"),
        ([*BASIC[:4], "a100x8", *BASIC[5:], "--precision", "fp8"], 2, "has no peak of it"),
        ([*BASIC, "train.py"], 2, "--model: is for a model that is planned by formulas; train.py is compiled"),
        ([*BASIC, "--mesh", "fsdp=3"], 2, "no mesh of 8 devices with fsdp 3"),
        ([*BASIC, "--memory", "300MiB"], 4, "a device would need"),
        ([*BASIC[:4], "h100pciex16", *BASIC[5:]], 2, "--topology links.toml"),
    ],
)
def test_bad_input_is_one_line(words: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == code
    error = capsys.readouterr().err.strip()
    assert line in error.splitlines()[-1]
    assert "Traceback" not in error


def test_the_page_shows_a_plan_and_names_a_damaged_file(tmp_path: Path) -> None:
    pytest.importorskip("dash")
    from perfscope.dashboards.web.pages import PageRequest
    from perfscope.dashboards.web.server.shelf import Shelf
    from perfscope.dashboards.web.server.workshop import Workshop
    from perfscope.plugins.plan import page

    def asked() -> PageRequest:
        workshop = cast(Workshop, None)
        return PageRequest(page="plan", parameters={}, base_path="/", shelf=Shelf((tmp_path,)), workshop=workshop)

    def shown() -> str:
        return json.dumps(page.layout(asked(), None), default=lambda part: part.to_plotly_json())

    assert "No plan is open here" in shown()
    file = tmp_path / "plan.json"
    assert run([*BASIC, "--mesh", "pipeline=1,context=1", "--micro-batch", "1", "-q", "--json", str(file)]) == 0
    before = page.mark(asked())
    assert "Small on 8 H100 SXM" in shown()
    file.write_bytes(file.read_bytes().replace(b'"candidates": [', b'"candidate": ['))
    assert "Small on 8 H100 SXM" not in shown()
    assert page.mark(asked()) != before


@pytest.mark.slow
@pytest.mark.torch
def test_the_script_that_measures_runs(tmp_path: Path) -> None:
    """On one gloo rank, as a rehearsal: exchanges of groups that do not exist there are left out."""
    script = tmp_path / "measure.py"
    words = [*BASIC, "--mesh", "pipeline=1,context=1", "--micro-batch", "1", "-q", "--measure", str(script)]
    assert run(words) == 0
    text = script.read_text()
    assert '["all-gather", ' in text
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
