"""What starting up loads: no framework, no numpy, no pandas; and the check itself can fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

HEAVY = ("torch", "jax", "numpy", "pandas", "scipy", "dash", "plotly", "rich", "msgspec")
FRAMEWORKS = ("torch", "jax", "pandas", "scipy", "dash", "plotly")

HELP = "import sys\nfrom perfscope.__main__ import run\nassert run(['--help']) == 0"


def loaded_by(program: str, watched: tuple[str, ...]) -> list[str]:
    """Which of the watched packages a fresh interpreter holds after the program."""
    tail = f"\nimport sys\nprint('LOADED', *[name for name in {watched!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program + tail], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize(
    "program",
    [
        "import perfscope",
        "import perfscope; dir(perfscope)",
        "import perfscope.commands",
        "import perfscope.commands.group, perfscope.__main__",
        "import perfscope.dashboards.figures",
        HELP,
        HELP.replace("['--help']", "['analyze', '--help']"),
        HELP.replace("['--help']", "['--version']"),
    ],
)
def test_starting_up_loads_nothing_heavy(program: str) -> None:
    assert loaded_by(program, HEAVY) == []


@pytest.mark.parametrize(
    "program",
    [
        "import perfscope.profiler",
        "import perfscope; perfscope.step; perfscope.region",
        "import perfscope; perfscope.analyze; perfscope.load; perfscope.Finding",
        "import perfscope.analyzers.readers.load, perfscope.dashboards.reports.html_report, perfscope.dashboards.report.notebook",
    ],
)
def test_no_framework_before_it_is_needed(program: str) -> None:
    assert loaded_by(program, FRAMEWORKS) == []


def test_this_check_can_fail() -> None:
    assert loaded_by("import perfscope, plotly", HEAVY) != []
    assert "numpy" in loaded_by("import perfscope.model.trace", HEAVY)
