"""Logs of torch.compile for tests: written record by record, recorded from the real torch, and read by tlparse."""

from __future__ import annotations

import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.torch_log.reader import read_records as read_bytes
from perfscope.model.compile_log import CompileLog
from tests.session.programs import environment


class LogText:
    """Writes records as ``torch._logging`` does; ``compile_id`` is that of the records that follow."""

    def __init__(self, **envelope: Any) -> None:
        self.envelope: dict[str, Any] = envelope
        self.lines: list[str] = []
        self.ms = 0
        self.epoch_us = 1_790_000_000_000_000.0  # 2026-09-21 14:13:20 UTC

    def at(self, frame: int, again: int = 0, attempt: int = 0) -> LogText:
        self.envelope.update(frame_id=frame, frame_compile_id=again, attempt=attempt)
        return self

    def add(self, kind: str, body: Any = None, payload: str | None = None, **envelope: Any) -> LogText:
        head: dict[str, Any] = {kind: {} if body is None else body, **self.envelope, **envelope}
        if payload is not None:
            head["has_payload"] = hashlib.md5(payload.encode()).hexdigest()
        self.ms += 1
        second, ms = divmod(self.ms, 1000)
        self.lines.append(f"V0921 16:13:{20 + second:02}.{ms:03}000 77 torch/x.py:3] {json.dumps(head)}")
        if payload is not None:
            self.lines.extend(f"\t{line}" for line in payload.split("\n"))
        return self

    def artifact(self, name: str, payload: Any) -> LogText:
        text = payload if isinstance(payload, str) else json.dumps(payload)
        return self.add("artifact", {"name": name, "encoding": "string"}, text)

    def event(self, name: str, phase: str, us: float, **more: Any) -> LogText:
        event = {"name": name, "ph": phase, "ts": self.epoch_us + us, "args": {"compile_id": "0/0"}, "tid": 0, "pid": 0}
        return self.add("chromium_event", None, json.dumps({**event, **more}, indent=0))

    def start(self, *lines: tuple[str, int, str]) -> LogText:
        """``dynamo_start`` with (file, line, function)."""
        for number, (file, _, _) in enumerate(lines):
            self.lines.append(f'V0921 16:13:20.000000 77 torch/x.py:3] {{"str": ["{file}", {number}]}}')
        frames = [{"line": line, "name": name, "filename": number} for number, (_, line, name) in enumerate(lines)]
        return self.add("dynamo_start", {"stack": frames})

    def metrics(self, **said: Any) -> LogText:
        held = {"co_name": "f", "co_filename": "/u/a.py", "co_firstlineno": 4, "start_time": 1.79e9, **said}
        return self.add("compilation_metrics", held)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def write(self, folder: Path, name: str = "dedicated_log_torch_trace_x.log") -> Path:
        path = folder / name
        path.write_bytes(self.text().encode())
        return path


def log_of(text: LogText) -> CompileLog:
    """The reader's result for an intact log."""
    log = read_bytes(text.text().encode(), "x")
    assert log.corrupt == 0
    return log


@dataclass
class TlparseSummary:
    """tlparse's summary of a log."""

    stats: dict[str, int]
    artifacts: Counter[str]
    """Files of the compile directory by name without number."""
    by_compile: dict[str, Counter[str]]
    events: list[dict[str, Any]]
    strings: int
    failures: list[tuple[str, str]]
    """(compile id, type) of the rows of failures and restarts."""


def tlparse(log: Path, folder: Path) -> TlparseSummary:
    """Run tlparse on ``log``."""
    program = shutil.which("tlparse") or shutil.which("tlparse", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("no tlparse (pip install tlparse)")
    plain = folder / "plain.log"
    plain.write_bytes(
        subprocess.run(["gzip", "-dc", log], capture_output=True, check=True).stdout
        if log.suffix == ".gz"
        else log.read_bytes()
    )
    out = folder / "tlparse"
    ran = subprocess.run(
        [program, plain, "-o", out, "--overwrite", "--no-browser"], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    said = re.search(r"Stats \{(.*?)\}", ran.stdout + ran.stderr)
    assert said
    directory = json.loads((out / "compile_directory.json").read_text())
    by_compile = {
        key.strip("[]"): Counter(_stem(one["name"]) for one in held["artifacts"]) for key, held in directory.items()
    }
    table = json.loads((out / "raw.jsonl").read_text().split("\n", 1)[0])["string_table"]
    return TlparseSummary(
        stats={name: int(count) for name, count in re.findall(r"(\w+): (\d+)", said[1])},
        artifacts=sum(by_compile.values(), Counter()),
        by_compile=by_compile,
        events=json.loads((out / "chromium_events.json").read_text()),
        strings=sum(one is not None for one in table),
        failures=_failures((out / "failures_and_restarts.html").read_text()),
    )


def _stem(name: str) -> str:
    stem = re.sub(r"_\d+\.\w+$", "", name)
    return "inductor_output_code" if stem.startswith("inductor_output_code") else stem


def _failures(page: str) -> list[tuple[str, str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    cells = [
        [html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in re.findall(r"<td>(.*?)</td>", row, re.DOTALL)]
        for row in rows
    ]
    return [(row[0].strip("[]"), row[1]) for row in cells if len(row) > 1]


def record(program: str, folder: Path, **more: str) -> Path:
    """The log of a torch program, run again with separate caches."""
    script = folder / "program.py"
    script.write_text(program)
    logs = folder / "logs"
    ran = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env=environment(TORCH_TRACE=str(logs), TORCHINDUCTOR_CACHE_DIR=str(folder / "cache"), **more),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    (log,) = logs.glob("*.log")
    return log
