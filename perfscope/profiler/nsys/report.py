"""What ``nsys`` left when the program ended: report, export, and the export without what must not travel.

A report and its plain export hold the environment of every process, and host and user names. The export that stays in
the run directory is rebuilt from the tables that are analyzed; the report is kept for ``nsys-ui``, readable for
its owner alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path

from perfscope.model.documents import run_folders
from perfscope.model.documents.run import PROCESS_FILE, Capture, Process, dump
from perfscope.profiler.nsys.marks import TIMED

REPORT = "report"
EXPORT = "export.sqlite"
LOG = "nsys.log"
EXPORT_SECONDS = 3600.0
MOST_SAID = 300
"""Characters of a message of ``nsys`` in a note."""

KEPT = re.compile(
    r"StringIds|ENUM_\w+|ANALYSIS_DETAILS|EXPORT_META_DATA|META_DATA_EXPORT|NVTX_\w+|OSRT_API|PROFILER_OVERHEAD|"
    r"CUPTI_ACTIVITY_KIND_\w+|CUDA_GPU_MEMORY_USAGE_EVENTS|GPU_METRICS|NET_NIC_METRIC|TARGET_INFO_(?:SESSION_START_TIME|GPU|GPU_METRICS|"
    r"NETWORK_METRICS|CUDA_DEVICE|CUDA_NULL_STREAM|CUDA_CONTEXT_INFO)"
)
"""Tables that are copied. Of ``META_DATA_CAPTURE`` the settings in `SETTINGS` are."""
SETTINGS = ("PROCESS_0:COLLECT_CUDA_TRACE",)
_POINTS = re.compile(r"(?i).*(?:nameId|textId|stringId|demangledName|shortName|mangledName)$")
"""Columns that hold ids of strings; a string that no kept row points at is not copied."""

KEPT_NOTE = (
    "{report} holds the environment of the program, and with it whatever secrets are there: it is kept for nsys-ui, "
    "readable for you alone; do not pass it on"
)


def folder_of(directory: Path, task: int) -> Path:
    """Where ``nsys`` of a task writes, below the run directory."""
    return directory / (f"nsys-{task:05d}" if task else "nsys")


def collect(directory: Path, folder: Path, nsys: str, *, steps_chosen: bool, task: int) -> list[str]:
    """Import, export and clean what lies in ``folder``, and write it into the manifests of the processes; notes.

    Whatever fails becomes the reason in those manifests.
    """
    artifact = (folder / EXPORT).relative_to(directory).as_posix()
    try:
        reason = _export(folder, nsys, steps_chosen=steps_chosen)
    except KeyboardInterrupt:
        reason = "interrupted while nsys exported its report"
    except (OSError, sqlite3.Error) as error:
        reason = f"what nsys left cannot be exported: {error}"
    _tell(directory, artifact, reason, task)
    reports = [one for one in folder.glob(f"{REPORT}.*") if one.suffix in (".nsys-rep", ".qdrep", ".qdstrm")]
    for report in reports:
        report.chmod(0o600)
    return [KEPT_NOTE.format(report=one.relative_to(directory).as_posix()) for one in reports]


def _export(folder: Path, nsys: str, *, steps_chosen: bool) -> str | None:
    """Make the export; why there is none."""
    report = _report(folder, nsys)
    if report is None:
        if (folder / f"{REPORT}.qdstrm").is_file():
            return (
                f"nsys left {REPORT}.qdstrm alone: its importer was not found (Debian: link "
                "/usr/lib/nsight-systems/host-linux-x64 into /usr/lib/x86_64-linux-gnu/nsight-systems)"
            )
        if steps_chosen:
            return "nsys recorded nothing: the first of the chosen steps never began"
        return f"nsys recorded nothing: {_said((folder / LOG).read_text(errors='replace'))}"
    raw = folder / ".raw.sqlite"
    try:
        done = subprocess.run(
            [nsys, "export", "--type=sqlite", f"--output={raw}", str(report)],
            capture_output=True,
            timeout=EXPORT_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode or not raw.is_file():
            output = (done.stderr or done.stdout).decode("utf-8", "replace")
            return f"`nsys export` failed (exit {done.returncode}): {_said(output)}"
        _copy_clean(raw, folder / EXPORT)
    except subprocess.TimeoutExpired:
        return f"`nsys export` took more than {EXPORT_SECONDS / 60:.0f} minutes"
    finally:
        raw.unlink(missing_ok=True)
    (folder / LOG).unlink(missing_ok=True)
    return None


def _report(folder: Path, nsys: str) -> Path | None:
    """The report; one that ``nsys`` could not make of its stream, by its importer where that lies elsewhere."""
    for suffix in (".nsys-rep", ".qdrep"):
        if (folder / f"{REPORT}{suffix}").is_file():
            return folder / f"{REPORT}{suffix}"
    stream = folder / f"{REPORT}.qdstrm"
    if not stream.is_file():
        return None
    home = Path(os.path.realpath(nsys)).parent
    for place in (home.parent, Path("/usr/lib/nsight-systems")):
        importer = place / "host-linux-x64" / "QdstrmImporter"
        if importer.is_file():
            report = folder / f"{REPORT}.nsys-rep"
            subprocess.run(
                [str(importer), "-i", str(stream), "-o", str(report)],
                capture_output=True,
                timeout=EXPORT_SECONDS,
                stdin=subprocess.DEVNULL,
                check=False,
            )
            return report if report.is_file() else None
    return None


def _copy_clean(raw: Path, export: Path) -> None:
    """Copy the tables that are analyzed, and the strings that they point at, into a file that never held more."""
    draft = export.with_name(f".{export.name}.part")
    draft.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("ATTACH ? AS raw", (f"{raw}",))
        tables = dict(database.execute("SELECT name, sql FROM raw.sqlite_master WHERE type = 'table'").fetchall())
        database.execute("BEGIN")
        database.execute("CREATE TEMP TABLE pointed (id INTEGER PRIMARY KEY)")
        for name, ddl in tables.items():
            if KEPT.fullmatch(name) and name != "StringIds":
                database.execute(ddl)
                database.execute(f'INSERT INTO main."{name}" SELECT * FROM raw."{name}"')  # noqa: S608
                for _, column, *_rest in database.execute(f'PRAGMA main.table_info("{name}")').fetchall():
                    if _POINTS.fullmatch(column):
                        database.execute(
                            f'INSERT OR IGNORE INTO pointed SELECT "{column}" FROM main."{name}" '  # noqa: S608
                            f"WHERE typeof(\"{column}\") = 'integer'"
                        )
        if "StringIds" in tables:
            database.execute(tables["StringIds"])
            database.execute(
                "INSERT INTO main.StringIds SELECT * FROM raw.StringIds WHERE id IN (SELECT id FROM pointed)"
            )
        if "META_DATA_CAPTURE" in tables:
            database.execute(tables["META_DATA_CAPTURE"])
            marks = ",".join("?" * len(SETTINGS))
            database.execute(
                f"INSERT INTO main.META_DATA_CAPTURE SELECT * FROM raw.META_DATA_CAPTURE WHERE name IN ({marks})",  # noqa: S608
                SETTINGS,
            )
        database.execute("COMMIT")
    draft.replace(export)


def _tell(directory: Path, artifact: str, reason: str | None, task: int) -> None:
    """Say in the manifests of the processes what became of the recording; of a program without one, in a new one."""
    known = False
    for process in run_folders.read_processes(directory)[0]:
        mine = [one for one in process.captures if one.artifact == artifact]
        known = known or bool(mine)
        if mine and reason is not None:
            captures = tuple(_missing(one, reason) if one.artifact == artifact else one for one in process.captures)
            _write(directory, replace(process, captures=captures))
    if not known:
        name = f"rank{task:05d}-nsys"
        (directory / name).mkdir(exist_ok=True)
        capture = Capture(pass_name=TIMED, tool="nsys", state="recorded", artifact=artifact)
        capture = capture if reason is None else _missing(capture, reason)
        _write(directory, Process(rank=task, directory=name, captures=(capture,)))


def _missing(capture: Capture, reason: str) -> Capture:
    return replace(capture, state="missing", artifact=None, steps=None, reason=reason)


def _write(directory: Path, process: Process) -> None:
    run_folders.write_atomically(directory / process.directory / PROCESS_FILE, dump(process))


def _said(text: str) -> str:
    lines = [line.strip() for line in re.split(r"[\r\n]", text) if line.strip() and "%" not in line]
    return (lines[-1] if lines else "it said nothing")[:MOST_SAID]
