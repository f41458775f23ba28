"""A report to its SQLite export, by the ``nsys`` that is installed: the report's own format is NVIDIA's alone."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from perfscope.model.errors import DataError

SECONDS = 900
"""An export writes some 100 MB/s; what takes longer is better exported once by hand and kept."""

_HEAD_BYTES = 256
_WRITTEN_BY = re.compile(rb"Profiler Report (\d{4}@\d+@\d+)")
_VERSION = re.compile(r"version (\d{4}(?:\.\d+)+)")
_TOO_OLD = "Version number is invalid"
_ERROR_LETTERS = 300


@contextlib.contextmanager
def exported(report: Path) -> Iterator[Path]:
    """The SQLite export of a report, in a temporary folder. ``DataError``: no ``nsys``, an older one, or it failed."""
    nsys = shutil.which("nsys")
    by_hand = f"nsys export --type sqlite --output {report.stem}.sqlite {report.name}"
    if nsys is None:
        raise DataError(
            f"{report}: a report of Nsight Systems{_written_by(report)} is read by `nsys` alone, which is not on PATH; "
            f"where it is, run `{by_hand}` and hand in the .sqlite"
        )
    with tempfile.TemporaryDirectory(prefix="perfscope-nsys-") as folder:
        target = Path(folder) / "export.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--output", str(target), str(report.absolute())]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False, cwd=folder
            )
        except subprocess.TimeoutExpired as error:
            raise DataError(
                f"{report}: `nsys export` took more than {SECONDS // 60} minutes; run `{by_hand}`"
            ) from error
        except OSError as error:
            raise DataError(f"{report}: {nsys} cannot be started: {error.strerror or error}") from error
        output = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
        if _TOO_OLD in output:
            raise DataError(
                f"{report}: written{_written_by(report)}, newer than the nsys here{_own_version(nsys)}; export it with "
                f"the version that wrote it or a newer one: `{by_hand}`"
            )
        if done.returncode or not target.is_file():
            raise DataError(f"{report}: `nsys export` failed (exit {done.returncode}): {_last_line(output)}")
        yield target


def _written_by(report: Path) -> str:
    """`` by 2025.5.1``, from the report's first line; older reports do not say it."""
    with report.open("rb") as file:
        found = _WRITTEN_BY.search(file.read(_HEAD_BYTES))
    return f" by {found[1].decode().replace('@', '.')}" if found else ""


def _own_version(nsys: str) -> str:
    try:
        output = subprocess.run([nsys, "--version"], capture_output=True, timeout=30, check=False, text=True).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _VERSION.search(output)
    return f" ({found[1]})" if found else ""


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return (lines[-1] if lines else "no output")[:_ERROR_LETTERS]
