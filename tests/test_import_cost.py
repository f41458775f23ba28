"""What an import may not pull in: a spy at the front of the import system writes down who was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.commands import COMMANDS
from tests.conftest import REPOSITORY

FRAMEWORKS = {"torch", "jax", "jaxlib"}
HEAVY = FRAMEWORKS | {"pandas", "scipy", "dash", "plotly"}

SPY = """
import sys
class Spy:
    asked = set()
    def find_spec(self, name, path=None, target=None):
        self.asked.add(name.partition(".")[0])
sys.meta_path.insert(0, Spy())
code = 0
try:
    exec(sys.argv.pop(1))
except SystemExit as exit:
    code = exit.code or 0
import json
print(json.dumps(sorted(Spy.asked)), file=sys.stderr)
sys.exit(code)
"""


def asked_for(statement: str, *arguments: str) -> set[str]:
    """Top-level names that a fresh interpreter looks for while it runs the statement, installed or not."""
    command = [sys.executable, "-c", SPY, statement, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("module", ["perfscope", "perfscope.commands", "perfscope.profiler", "perfscope.__main__"])
def test_an_import_loads_nothing_heavy(module: str) -> None:
    asked = asked_for(f"import {module}")
    assert "perfscope" in asked
    assert asked & HEAVY == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([name, "--help"] for name in sorted(COMMANDS))], ids=" ".join
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    asked = asked_for("from perfscope.__main__ import main; main()", *arguments)
    assert "click" in asked
    assert asked & HEAVY == set()


def test_a_trace_is_judged_without_a_framework(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 2, "args": {"stream": 7}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    asked = asked_for(
        "from perfscope.__main__ import main; main()", "analyze", str(path), "-o", str(tmp_path / "r.html")
    )
    assert (tmp_path / "r.html").is_file()
    assert asked & (FRAMEWORKS | {"dash", "plotly"}) == set()


@pytest.mark.parametrize("name", sorted(HEAVY))
def test_the_spy_sees_an_import_even_of_what_is_not_installed(name: str) -> None:
    late = f"def late():\n  try:\n    import {name}.no_such_part\n  except ImportError: pass\nlate()"
    assert name in asked_for(late)
