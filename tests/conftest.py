"""Finds the corpus of real traces; tests that need it skip with a reason where it is absent."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The duration of an example depends on the load of the machine.
# Each run draws other examples: few of them every day find what many find in one run.
settings.register_profile("perfscope", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("perfscope")

# Tests start Python hundreds of times: without bytecode every process would compile perfscope and the tests again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# XLA's own passes are as always. LLVM would optimize for seconds what runs for milliseconds.
QUICK_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK_XLA}".strip()

os.environ["PERFSCOPE_CACHE"] = "off"  # tests read the files themselves and leave the home alone

# A shell starts background jobs with SIGINT ignored, and programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parent.parent
CORPUS = Path(os.environ.get("PERFSCOPE_CORPUS", REPOSITORY.parent / "shared" / "data"))


def corpus_files(folder: str, pattern: str = "*") -> list[Path]:
    """Files of a corpus folder, sorted; empty where the corpus is absent."""
    return sorted((CORPUS / folder).glob(pattern))


MOST_EVERYDAY_BYTES = 200_000
"""Larger files of the corpus seldom show more than the smaller ones of their format, and take long."""


def every_file(paths: Sequence[Path]) -> list[Any]:
    """Values of `pytest.mark.parametrize`: large files are for the slow tests, but for the smallest of a folder."""
    sizes = {path: path.stat().st_size for path in paths if path.is_file()}
    smallest = {path.parent: path for path in sorted(sizes, key=sizes.__getitem__, reverse=True)}
    large = {path for path, size in sizes.items() if size > MOST_EVERYDAY_BYTES} - set(smallest.values())
    return [pytest.param(path, marks=pytest.mark.slow) if path in large else path for path in paths]


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text has the width of a pipe; otherwise parallel workers of pytest inherit the width of its terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)


def pytest_collection_finish() -> None:
    """Exclude the loaded modules and collected tests from garbage collection: they stay until the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes in a test's name by their number: a gzip header holds its second, and workers collect apart."""
    return f"{len(val)} bytes" if isinstance(val, bytes) and not val.isascii() else None


@pytest.fixture(scope="session")
def corpus() -> Path:
    """The corpus folder."""
    if not CORPUS.is_dir():
        pytest.skip(f"no corpus at {CORPUS}; set PERFSCOPE_CORPUS")
    return CORPUS


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden``."""
    parser.addoption("--update-golden", action="store_true", help="write what is rendered to the golden files")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: compare ``text`` with ``golden/<name>`` next to the test's file."""
    folder = request.path.parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
        assert path.is_file(), f"no {path.name}: pytest --update-golden writes it"
        assert text == path.read_bytes().decode()

    return compare
