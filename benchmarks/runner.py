"""Runs readers of one file in turn, each in a fresh process, and makes tables and JSON of what they took.

Processor time counts (user and system, of the process and the children that it waited for, imports included), for the
machine may have other work; only the readers of one table, which ran in turn, are compared. A ratio is of medians, with
a 95 % interval of the bootstrap over turns.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import Pool
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
LEAST_FOR_RATE = 10_000_000
"""Bytes; of less the imports decide."""
PACKAGES = ("perfscope", "numpy", "msgspec", "isal", "protobuf", "jax", "xprof", "tlparse", "viztracer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A command that reads a file. ``FILE`` and ``OUT`` (a folder) in it are replaced."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    turns: int | None = None
    """At most so many: those that take a minute need no interval."""
    warm: bool = False
    """Run once before, unmeasured: it keeps something for the next time."""
    against: str | None = None
    """The reader whose times are 1.00 in the table; the first of the case for ``None``."""
    after: Callable[[Path], Mapping[str, float]] | None = None
    """Numbers by name that are read from the working folder when the command is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Readers of one file, ours first. Each runs in a working folder of the case's own, the same for all turns."""

    key: str
    title: str
    make: Callable[[Path, bool], tuple[Path, str]]
    """Writes the file into a folder, small or in full; returns it (or its folder) and a description."""
    readers: Mapping[str, Reader]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Measurements of one process."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    """The largest resident set of a process."""
    marks: Mapping[str, float] = field(default_factory=dict)
    """Values measured by the command itself (``OUT/marks.json``) and read after it, by name with unit."""


def python(code: str, interpreter: str = sys.executable, **more: Any) -> Reader:
    """A reader that is a few lines of Python; ``sys.argv[1]`` is the file."""
    return Reader(command=(interpreter, "-c", f"import sys\n{code}", "FILE"), **more)


def measure(case: Case, folder: Path, *, small: bool, turns: int) -> dict[str, Any]:
    """All readers of a case, in turn."""
    with Pool(1) as pool:  # a child's peak of memory begins with that of its parent, which stays small
        file, what = pool.apply(case.make, (folder, small))
    size = sum(path.stat().st_size for path in (file.rglob("*") if file.is_dir() else [file]) if path.is_file())
    runs: dict[str, list[Run]] = {name: [] for name in case.readers}
    loads = [os.getloadavg()[0]]
    for reader in case.readers.values():
        if reader.warm:
            _run(reader, file, folder)
    for turn in range(turns):
        for name, reader in case.readers.items():
            if turn < (reader.turns or turns):
                runs[name].append(_run(reader, file, folder))
        loads.append(os.getloadavg()[0])
    return {
        "key": case.key, "title": case.title, "what": what, "bytes": size, "load": [min(loads), max(loads)],
        "against": {name: reader.against or next(iter(case.readers)) for name, reader in case.readers.items()},
        "runs": {name: [asdict(run) for run in mine] for name, mine in runs.items()},
    }  # fmt: skip


def _run(reader: Reader, file: Path, folder: Path) -> Run:
    command = [word.replace("FILE", str(file)).replace("OUT", str(folder / "out")) for word in reader.command]
    (folder / "out").mkdir(exist_ok=True)
    told, ended = folder / "out" / "marks.json", folder / "out" / "ended"
    for file_of_before in (told, ended):
        file_of_before.unlink(missing_ok=True)
    environment = {
        **os.environ, "PYTHONPATH": str(REPOSITORY), "PERFSCOPE_CACHE": "off", "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed perfscope has its bytecode
    environment |= {name: text.replace("OUT", str(folder)) for name, text in reader.environment.items()}
    log = folder / "stderr"
    started = time.perf_counter()
    with log.open("wb") as errors:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
    wall, now = time.perf_counter() - started, time.time()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)[:300]}: exit {process.returncode}\n{log.read_text()[-2000:]}")
    marks: dict[str, float] = json.loads(told.read_text()) if told.exists() else {}
    if ended.exists():
        marks["stop s"] = now - float(ended.read_text())
    if reader.after is not None:
        marks |= reader.after(folder)
    used = usage.ru_utime + usage.ru_stime
    return Run(cpu_s=used, wall_s=wall, peak_bytes=usage.ru_maxrss * 1024, marks=marks)


def tell(marks: dict[str, float]) -> None:
    """Hand numbers to the runner, for programs that it starts in a folder with ``out``; elsewhere print them."""
    if Path("out").is_dir():
        Path("out/marks.json").write_text(json.dumps(marks))
    else:
        print(json.dumps(marks))


def interval(ours: list[float], theirs: list[float]) -> tuple[float, float] | None:
    """95 % of the ratio of medians, theirs to ours, turns drawn again in pairs; ``None`` of fewer than three."""
    turns = min(len(ours), len(theirs))
    if turns < 3:
        return None
    import numpy as np

    drawn = np.random.default_rng(0).integers(0, turns, (2000, turns))
    ratios = np.median(np.array(theirs)[drawn], axis=1) / np.median(np.array(ours)[drawn], axis=1)
    low, high = np.percentile(ratios, (2.5, 97.5))
    return float(low), float(high)


def table(result: Mapping[str, Any]) -> str:
    """Markdown of one case."""
    runs, size, against = result["runs"], result["bytes"], result["against"]
    first = next(iter(runs))
    marks = list(dict.fromkeys(mark for mine in runs.values() for run in mine for mark in run["marks"]))
    rates = size >= LEAST_FOR_RATE
    base = "first row" if set(against.values()) == {first} else "bare"
    heads = ["reader", "CPU s", *(["s/GB"] if rates else []), f"x {base}", "95 %", "wall s", "peak MB", *marks, "turns"]
    low_load, high_load = result["load"]
    lines = [
        f"{result['what']}, {size / 1e6:,.1f} MB; load average {low_load:.0f} to {high_load:.0f}",
        "",
        f"| {' | '.join(heads)} |",
        f"|-{'|-:' * (len(heads) - 1)}|",
    ]
    for name, mine in runs.items():
        seconds, ours = ([run["cpu_s"] for run in runs[one]] for one in (name, against[name]))
        median = statistics.median(seconds)
        between = None if name == against[name] else interval(ours, seconds)
        cells = [
            name,
            f"{median:.2f}",
            *([f"{median / size * 1e9:.1f}"] if rates else []),
            f"{median / statistics.median(ours):.2f}",
            "" if between is None else f"{between[0]:.2f} to {between[1]:.2f}",
            f"{statistics.median(run['wall_s'] for run in mine):.1f}",
            f"{max(run['peak_bytes'] for run in mine) / 1e6:,.0f}",
            *(_middle([run["marks"][mark] for run in mine if mark in run["marks"]]) for mark in marks),
            str(len(mine)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _middle(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else ""


def into_markdown(file: Path, key: str, text: str) -> None:
    """Replace the text between the markers of ``key``."""
    before, opening, rest = file.read_text().partition(f"<!-- {key} -->\n")
    _, closing, after = rest.partition(f"<!-- /{key} -->")
    if not opening or not closing:
        raise SystemExit(f"{file}: no markers of {key}")
    file.write_text(f"{before}{opening}{text}\n{closing}{after}")


def machine() -> str:
    """Processor and cores, as the name of a folder."""
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]  # fmt: skip
    words = "".join(letter if letter.isalnum() else "-" for letter in (names or [platform.machine()])[0])
    return f"{words.strip('-')}-{os.cpu_count()}"


def about() -> dict[str, Any]:
    """The machine and the versions."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"machine": machine(), "cores": os.cpu_count(), "python": platform.python_version(), "packages": packages}


def write(file: Path, document: Mapping[str, Any]) -> None:
    """The results as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n")
