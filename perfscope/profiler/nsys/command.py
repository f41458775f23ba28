"""Nsight Systems around the whole program: the abilities of the installed ``nsys``, and the command line that wraps it.

```
nsys profile <our options, as far as supported> --output RUN/nsys/report  sh -c ...  program
```

``nsys`` writes to stdout. The program's own stdout and stderr bypass it as two more descriptors, and the output of
``nsys`` goes into a file; ``nsys`` itself passes stdin, signals and the exit code through.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import Struct

from perfscope.model.capture import CaptureOptions
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import PROCESS_FILE, Capture, Process, dump
from perfscope.model.errors import NotStartedError
from perfscope.model.files import write_atomically
from perfscope.profiler.launch.program import Ended, Target
from perfscope.profiler.nsys.marks import CAPTURE_RANGE, TIMED
from perfscope.profiler.session.annotate import DOMAIN

# Files of ``nsys`` when the program ended: the report, its export, and the export without private data.
#
# A report and its plain export hold the environment of every process, and host and user names. The export that stays
# in the run directory is rebuilt from the analyzed tables; the report is kept for ``nsys-ui``, readable only for
# its owner.


REPORT = "report"
EXPORT = "export.sqlite"
LOG = "nsys.log"
EXPORT_SECONDS = 3600.0
MESSAGE_LIMIT = 300
"""Characters of a message of ``nsys`` in a note."""

KEPT = re.compile(
    r"StringIds|ENUM_\w+|ANALYSIS_DETAILS|EXPORT_META_DATA|META_DATA_EXPORT|NVTX_\w+|OSRT_API|PROFILER_OVERHEAD|"
    r"CUPTI_ACTIVITY_KIND_\w+|CUDA_GPU_MEMORY_USAGE_EVENTS|GPU_METRICS|NET_NIC_METRIC|TARGET_INFO_(?:SESSION_START_TIME|GPU|GPU_METRICS|"
    r"NETWORK_METRICS|CUDA_DEVICE|CUDA_NULL_STREAM|CUDA_CONTEXT_INFO)"
)
"""Tables that are copied; from ``META_DATA_CAPTURE`` only the settings in `SETTINGS`."""
SETTINGS = ("PROCESS_0:COLLECT_CUDA_TRACE",)
_POINTS = re.compile(r"(?i).*(?:nameId|textId|stringId|demangledName|shortName|mangledName)$")
"""Columns that hold ids of strings; a string that no kept row points at is not copied."""

KEPT_NOTE = (
    "{report} holds the environment of the program, and with it whatever secrets are there: it is kept for nsys-ui, "
    "readable for you alone; do not pass it on"
)


def _export(folder: Path, nsys: str, *, steps_chosen: bool) -> str | None:
    """Make the export; return the reason if it failed."""
    report = _report(folder, nsys)
    if report is None:
        if (folder / f"{REPORT}.qdstrm").is_file():
            return (
                f"nsys left {REPORT}.qdstrm alone: its importer was not found (Debian: link "
                "/usr/lib/nsight-systems/host-linux-x64 into /usr/lib/x86_64-linux-gnu/nsight-systems)"
            )
        if steps_chosen:
            return "nsys recorded nothing: the first of the chosen steps never began"
        return f"nsys recorded nothing: {_last_message((folder / LOG).read_text(errors='replace'))}"
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
            return f"`nsys export` failed (exit {done.returncode}): {_last_message(output)}"
        _copy_clean(raw, folder / EXPORT)
    except subprocess.TimeoutExpired:
        return f"`nsys export` took more than {EXPORT_SECONDS / 60:.0f} minutes"
    finally:
        raw.unlink(missing_ok=True)
    (folder / LOG).unlink(missing_ok=True)
    return None


def _report(folder: Path, nsys: str) -> Path | None:
    """The report; if ``nsys`` could not make it from its stream, by its importer in another place."""
    report = folder / f"{REPORT}.nsys-rep"
    if report.is_file():
        return report
    stream = folder / f"{REPORT}.qdstrm"
    if not stream.is_file():
        return None
    home = Path(os.path.realpath(nsys)).parent
    for place in (home.parent, Path("/usr/lib/nsight-systems")):
        importer = place / "host-linux-x64" / "QdstrmImporter"
        if importer.is_file():
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


def _note_result(directory: Path, artifact: str, reason: str | None, task: int) -> None:
    """Note the result of the recording in the manifests of the processes, or in a new one for other programs."""
    known = False
    for process in run_folders.read_processes(directory)[0]:
        mine = [capture for capture in process.captures if capture.artifact == artifact]
        known = known or bool(mine)
        if mine and reason is not None:
            captures = tuple(
                _missing(capture, reason) if capture.artifact == artifact else capture for capture in process.captures
            )
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
    write_atomically(directory / process.directory / PROCESS_FILE, dump(process))


def _last_message(text: str) -> str:
    lines = [line.strip() for line in re.split(r"[\r\n]", text) if line.strip() and "%" not in line]
    return (lines[-1] if lines else "it said nothing")[:MESSAGE_LIMIT]


SECONDS = 60.0
"""For a question to ``nsys``; on a cold network file system its start alone takes seconds."""

NEEDED = ("trace", "output", "sample", "cpuctxsw")
"""Options of ``nsys profile`` that we require; versions since 2020 have them."""
NEEDED_FOR_STEPS = ("capture-range", "capture-range-end", "nvtx-capture", "env-var")

TRACES = {"light": ("cuda", "nvtx"), "default": ("cuda", "nvtx", "osrt"), "deep": ("cuda", "nvtx", "osrt", "cudnn")}
"""Traced APIs by level, as far as the installed version supports them. NCCL writes its own NVTX ranges."""

_OPTION = re.compile(r"^\s*(?:-\w, )?--([a-z][a-z0-9-]+)=", re.MULTILINE)
_VALUE = re.compile(r"'([a-z][a-z0-9-]*)'")
_VERSION = re.compile(r"version (\d{4}(?:\.\d+)+)")
_GPU = re.compile(r"^\s*(?:\d+|cuda-visible|all)\s*[:(]", re.MULTILINE)

OUTSIDE = 'exec 8>&2 9>&1 >"$0" 2>&1; exec "$@"'
INSIDE = 'umask "$0"; exec "$@" >&9 2>&8 8>&- 9>&-'
"""Commands of the shell around ``nsys`` and of the one inside it: each becomes the process that it starts.

``nsys`` starts programs with an umask of 0, which would make their files writable for all users.
"""


class Installed(Struct, frozen=True, kw_only=True):
    """The ``nsys`` on PATH. ``options``: long names that ``nsys profile`` has; ``traces``: APIs that it can trace."""

    path: str
    version: str | None
    options: frozenset[str]
    traces: frozenset[str]
    gpu_metrics: str | None
    """The option that samples the GPUs' counters, if there are GPUs and this user may; with its dashes."""


def available() -> str | None:
    """Why ``nsys`` cannot record here, or ``None`` if it can."""
    installed = probe(counters=False)
    return installed if isinstance(installed, str) else None


def probe(*, counters: bool = True) -> Installed | str:
    """The installed ``nsys``, or why it cannot be used. ``counters``: ask for GPU counters, which takes a second."""
    path = shutil.which("nsys")
    if path is None:
        return "nsys is not on PATH; it is part of the CUDA toolkit, and a separate package (Nsight Systems)"
    output = _nsys_output(path, "--version")
    if output is None:
        return f"{path} does not answer"
    match = _VERSION.search(output)
    version = match[1] if match else None
    text = _nsys_output(path, "profile", "--help") or ""
    options = frozenset(_OPTION.findall(text)) | ({"nvtx-capture"} if "--nvtx-capture" in text else frozenset())
    lacking = [f"--{name}" for name in NEEDED if name not in options]
    if lacking:
        return f"nsys {version or 'of an unknown version'} is too old: `nsys profile` has no {', '.join(lacking)}"
    section = re.search(r"--trace=\s*\n(.*?)(?:\n\s*\n|\Z)", text, re.DOTALL)
    after = text[section.end() :] if section else ""
    values = (section[1] if section else "") + after.partition("\n\t-")[0]
    return Installed(
        path=path,
        version=version,
        options=options,
        traces=frozenset(_VALUE.findall(values)),
        gpu_metrics=_gpu_metrics(path, options) if counters else None,
    )


def arguments(installed: Installed, options: CaptureOptions, report: Path) -> list[str]:
    """The ``nsys profile`` of this version that does what ``options`` ask, up to the program."""
    traces = [trace for trace in TRACES[options.level] if not installed.traces or trace in installed.traces]
    line = [installed.path, "profile", f"--trace={','.join(traces)}", "--sample=none", "--cpuctxsw=none"]
    wanted = {"force-overwrite": "true", "wait": "primary"}
    if options.level == "deep":
        wanted["cuda-graph-trace"] = "node"  # the kernels in graphs, at a cost for each
    line += [f"--{name}={value}" for name, value in wanted.items() if name in installed.options]
    if installed.gpu_metrics is not None and options.level != "light":
        line.append(f"{installed.gpu_metrics}=all")
    if options.steps is not None:
        line += [
            "--capture-range=nvtx",
            "--capture-range-end=stop",
            f"--nvtx-capture={CAPTURE_RANGE}@{DOMAIN}",
            # The range's name is not registered with NVTX, and nsys by default looks at registered names only.
            "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
        ]
    return [*line, f"--output={report}"]


def unsupported_options(installed: Installed, options: CaptureOptions) -> str | None:
    """Requested options that this version does not support, or ``None``."""
    lacking = [f"--{name}" for name in NEEDED_FOR_STEPS if name not in installed.options]
    if options.steps is not None and lacking:
        return f"nsys {installed.version} cannot record --steps alone: `nsys profile` has no {', '.join(lacking)}"
    return None


def wrapped_command(line: list[str], program: list[str], log: Path) -> list[str]:
    """A command that runs ``program`` under ``line``; the output of ``nsys`` goes into ``log``."""
    mask = os.umask(0)
    os.umask(mask)
    return ["/bin/sh", "-c", OUTSIDE, str(log), *line, "/bin/sh", "-c", INSIDE, f"{mask:04o}", *program]


def _gpu_metrics(path: str, options: frozenset[str]) -> str | None:
    """The option's name changed in 2024. Asked for its values, ``nsys`` lists the GPUs that this user may sample."""
    for name in ("gpu-metrics-devices", "gpu-metrics-device"):
        if name in options:
            output = _nsys_output(path, "profile", f"--{name}=help") or ""
            return (
                f"--{name}"
                if _GPU.search(output) and "rivilege" not in output and "ERR_NVGPUCTRPERM" not in output
                else None
            )
    return None


def _nsys_output(*command: str) -> str | None:
    """Output of ``nsys``, on either stream, or ``None`` if it fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    output = (done.stdout + b"\n" + done.stderr).decode("utf-8", "replace")
    return output if done.returncode == 0 else None


# One program under Nsight Systems, from the check of the installed version to the notes on the result.


class NsysRun:
    """The ``nsys`` around the program of one task. ``NotStartedError`` if it cannot do what ``options`` ask."""

    def __init__(self, options: CaptureOptions) -> None:
        """Read the abilities of the installed version."""
        installed = probe()
        problem = installed if isinstance(installed, str) else unsupported_options(installed, options)
        if problem is not None or isinstance(installed, str):
            raise NotStartedError(f"--capture nsys: {problem}")
        self._installed = installed
        self._options = options
        self._directory = Path()
        self._folder = Path()
        self._task = 0

    def place(self, directory: Path, task: int) -> str:
        """Make the output folder; return the path of the export, relative to the run directory."""
        self._directory, self._task = directory.resolve(), task
        self._folder = self._directory / (f"nsys-{task:05d}" if task else "nsys")
        self._folder.mkdir(mode=0o700)
        return self._artifact()

    def around(self, target: Target) -> Target:
        """The command that runs ``target`` under ``nsys``."""
        line = arguments(self._installed, self._options, self._folder / REPORT)
        command = wrapped_command(line, target.command_line(), self._folder / LOG)
        return Target(arguments=tuple(command), command=True)

    def program_result(self, ended: Ended) -> Ended:
        """Result of the program as far as ``nsys`` reports it.

        It returns the program's code, but 0 for many programs that Ctrl-C ended, because it stops waiting for them.
        """
        if ended.interrupted and ended.code == 0:
            return msgspec.structs.replace(ended, code=128 + signal.SIGINT)
        return ended

    def collect(self) -> tuple[str, ...]:
        """Export the recording after the program ended. Notes for the run's manifest.

        Import, export and clean the files of the folder, and write the result into the manifests of the processes; a
        failure becomes the reason in those manifests.
        """
        try:
            reason = _export(self._folder, self._installed.path, steps_chosen=self._options.steps is not None)
        except KeyboardInterrupt:
            reason = "interrupted while nsys exported its report"
        except (OSError, sqlite3.Error) as error:
            reason = f"what nsys left cannot be exported: {error}"
        _note_result(self._directory, self._artifact(), reason, self._task)
        reports = [file for file in self._folder.glob(f"{REPORT}.*") if file.suffix in (".nsys-rep", ".qdstrm")]
        for report in reports:
            report.chmod(0o600)
        return tuple(KEPT_NOTE.format(report=file.relative_to(self._directory).as_posix()) for file in reports)

    def _artifact(self) -> str:
        """The export, relative to the run directory."""
        return (self._folder / EXPORT).relative_to(self._directory).as_posix()
