"""Runs of the planted programs, each recorded once per session."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import warm

HERE = Path(__file__).parent


class Runs:
    """Recorded runs by their arguments; ``folder`` is their working folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[tuple[str, ...], Path] = {}

    def __call__(self, *program: str, options: tuple[str, ...] = ()) -> Path:
        """The run folder of ``perfscope run --fingerprint OPTIONS PROGRAM``."""
        key = (*options, "|", *program)
        if key not in self._known:
            where = self.folder / f"runs-{len(self._known)}"
            words = ["run", "--fingerprint", "--no-report", "-q", "-o", str(where), *options, *program]
            done = self.perfscope(*words)
            assert done.returncode == 0, done.stderr
            (self._known[key],) = (path for path in where.iterdir() if not path.is_symlink())
            (self._known[key] / "stdout.txt").write_text(done.stdout)
        return self._known[key]

    def planted(self, cause: str, *options: str, number: int = 0) -> Path:
        """The run of ``planted.py CAUSE``; another ``number`` is another run of the same."""
        return self(str(HERE / "planted.py"), cause, *["again"] * number, options=options)

    def perfscope(self, *words: str) -> warm.subprocess.CompletedProcess[str]:
        """Run a command of perfscope in the working folder."""
        command = [sys.executable, "-m", "perfscope", *words]
        return warm.run(command, cwd=self.folder, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("fingerprint"))


@pytest.fixture(scope="session")
def line_of() -> Callable[[str, str], str]:
    """``line_of("planted.py", "norm")``: the end of the name of the line with that comment."""

    def find(file: str, mark: str) -> str:
        lines = (HERE / file).read_text().splitlines()
        (number,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))
        return f"{file}:{number}"

    return find
