"""Captures that are possible on this machine, and what prevents the others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct

from perfscope import native
from perfscope.model.documents.run import RUN_FILE
from perfscope.model.documents.run_folders import RUNS_FOLDER
from perfscope.model.environment import Check, tool_output
from perfscope.model.errors import DataError
from perfscope.model.plugins import load, named
from perfscope.model.units import format_bytes
from perfscope.profiler.launch.program import path_with_package

TORCH_SECONDS = 120.0
"""Importing torch and touching the driver takes seconds; on a cold network file system a minute."""
LEAST_FREE = 1 << 30
"""Bytes: a deep capture of a large model on eight ranks writes several hundred megabytes."""
PERF_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
MOST_PARANOID = 2
"""Above 2 an ordinary user may not even count events of processes of the same user."""
KNOWN_VARIABLES = (
    "PERFSCOPE_CACHE", "PERFSCOPE_CAPTURE", "PERFSCOPE_CORPUS", "PERFSCOPE_NATIVE", "PERFSCOPE_PLUGINS",
)  # fmt: skip

_PROBE = """
import importlib.util, json, os, shutil
found = {"captures": {}}
try:
    import torch
    found["compiler"] = any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)
    found["triton"] = importlib.util.find_spec("triton") is not None
    found["torch"] = str(torch.__version__)
    found["cuda"] = torch.version.cuda
    found["hip"] = torch.version.hip
    found["activities"] = sorted(str(one).rsplit(".", 1)[-1] for one in torch.profiler.supported_activities())
    found["devices"] = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    found["distributed"] = [name for name in ("gloo", "nccl", "mpi")
        if torch.distributed.is_available() and getattr(torch.distributed, f"is_{name}_available")()]
except Exception as error:
    found["problem"] = f"{type(error).__name__}: {error}"
from perfscope.profiler.session.pass_runner import tools, unavailable
found["captures"] = {tool: unavailable(tool) for tool in tools() if not tool.startswith("jax_")}
print("\\n" + json.dumps(found))
"""


_JAX_PROBE = """
import json, os
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or it takes most of a GPU for a moment
found = {"captures": {}}
try:
    import jax
    from perfscope.profiler.jax import compat as jax_compat
    found["jax"], found["jaxlib"] = jax_compat.version()
    found["apis"] = jax_compat.private_apis()
    from perfscope.profiler.session.pass_runner import tools, unavailable
    found["captures"] = {tool: unavailable(tool) for tool in tools() if tool.startswith("jax_")}
    found["devices"] = [f"{one.platform} ({one.device_kind})" for one in jax.local_devices()]
except Exception as error:
    found["problem"] = f"{type(error).__name__}: {error}"
    found["absent"] = isinstance(error, ModuleNotFoundError)
print("\\n" + json.dumps(found))
"""


class Examined(Struct, frozen=True, kw_only=True):
    """Result of one check."""

    captures: dict[str, str | None]
    """Tool -> why it cannot capture here."""
    plugins: dict[str, tuple[str, list[Check]]]
    """Key -> title and checks of a plug-in."""
    machine: list[Check]


def examine() -> Examined:
    """Look at frameworks, tools and compilers. ``DataError``: no process can be started."""
    probe, jax_probe = _probe(), _probe(_JAX_PROBE, "jax")
    return Examined(
        captures=probe["captures"] | jax_probe["captures"],
        plugins={key: (checks.title, load(checks.find)()) for key, checks in named("checks").items()},
        machine=[*_torch_checks(probe), *_jax_checks(jax_probe), *(check() for check in CHECKS)],
    )


def _probe(program: str | None = None, name: str = "torch") -> dict[str, Any]:
    """Facts that a framework reports in a separate process, because its import may crash, hang or take a GPU."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", program or _PROBE],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TORCH_SECONDS,
            env={**os.environ, "PYTHONPATH": path_with_package()},
            stdin=subprocess.DEVNULL,
        )
        result: dict[str, Any] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return {"problem": f"importing {name} took more than {TORCH_SECONDS:.0f} s", "captures": {}}
    except OSError as error:
        raise DataError(f"{sys.executable}: cannot be started: {error.strerror or error}") from error
    except ValueError:
        return {"problem": f"importing {name} ended the process with code {done.returncode}", "captures": {}}
    return result


def _torch_checks(probe: dict[str, Any]) -> list[Check]:
    if "problem" in probe:
        absent = "ModuleNotFoundError" in probe["problem"]
        return [
            Check(
                name="torch",
                status="absent" if absent else "problem",
                text="not installed for this Python" if absent else probe["problem"],
                advice="install perfscope into the environment that trains" if absent else None,
            )
        ]
    platform = f"CUDA {probe['cuda']}" if probe["cuda"] else f"ROCm {probe['hip']}" if probe["hip"] else "CPU only"
    backends = ", ".join(probe["distributed"]) or "no distributed backend"
    checks = [Check(name="torch", status="ok", text=f"{probe['torch']} ({platform}), {backends}")]
    activities = ", ".join(probe["activities"])
    checks.append(Check(name="torch.profiler", status="ok", text=f"records {activities}"))
    if probe["devices"]:
        checks.append(Check(name="devices", status="ok", text=", ".join(probe["devices"])))
    elif platform == "CPU only":
        checks.append(Check(name="devices", status="absent", text="none; CPU programs are captured and judged too"))
    else:
        checks.append(Check(name="devices", status="problem", text=f"torch is built for {platform} and sees no device"))
    checks.append(_compile_check(compiler=probe["compiler"], triton=probe["triton"], devices=bool(probe["devices"])))
    return checks


def _compile_check(*, compiler: bool, triton: bool, devices: bool) -> Check:
    """Whether torch.compile finds what inductor hands its code to."""
    name = "torch.compile"
    if devices and not triton:
        text = "no Triton: nothing can be compiled for the device"
        return Check(name=name, status="problem", text=text, advice="pip install triton")
    if not compiler:
        text = "no C++ compiler on PATH: inductor needs one for code on the CPU, and for launching Triton's kernels"
        return Check(name=name, status="problem", text=text, advice="install g++, or name a compiler in CXX")
    return Check(name=name, status="ok", text=f"C++ compiler, {'Triton' if triton else 'no Triton (GPUs need it)'}")


def _jax_checks(probe: dict[str, Any]) -> list[Check]:
    if probe.get("absent"):
        return [Check(name="jax", status="absent", text="not installed for this Python")]
    checks = []
    if "jax" in probe:
        version = f"{probe['jax']} (jaxlib {probe['jaxlib']})"
        lacking = [name for name, value in probe["apis"].items() if not value]
        checks.append(
            Check(name="jax", status="problem", text=f"{version} lacks {', '.join(lacking)}")
            if lacking
            else Check(name="jax", status="ok", text=f"{version}, all that captures use is there")
        )
    if "problem" in probe:
        checks.append(Check(name="jax devices" if checks else "jax", status="problem", text=probe["problem"]))
    else:
        counts = Counter(probe["devices"])
        text = ", ".join(f"{count}x {name}" for name, count in counts.items())
        checks.append(Check(name="jax devices", status="ok", text=text))
    return checks


def _smi(name: str, *arguments: str) -> Check:
    if shutil.which(name) is None:
        return Check(name=name, status="absent", text="not on PATH; driver and clocks stay unknown")
    text = tool_output(name, *arguments)
    if not text:
        return Check(name=name, status="problem", text="is on PATH and does not answer")
    return Check(name=name, status="ok", text=" ".join(text.split("\n")[0].split()))


def _nsys() -> Check:
    if shutil.which("nsys") is None:
        return Check(name="nsys", status="absent", text="not on PATH")
    from perfscope.profiler.nsys import command

    result = command.probe()
    if isinstance(result, str):
        return Check(name="nsys", status="problem", text=result)
    counters = (
        "may sample the GPUs' counters" if result.gpu_metrics else "no counters of GPUs (none here, or not allowed)"
    )
    traces = ", ".join(name for name in command.TRACES["deep"] if name in result.traces)
    return Check(name="nsys", status="ok", text=f"{result.version or 'unknown version'}, traces {traces}; {counters}")


def _nvtx() -> Check:
    try:
        result = version("nvtx")
    except PackageNotFoundError:
        return Check(name="nvtx", status="problem", text="not installed", advice="pip install nvtx")
    denies = tuple(int(part) for part in result.split(".")[:3] if part.isdecimal()) >= (0, 2, 12)
    if denies and shutil.which("nsys") is not None:
        return Check(
            name="nvtx",
            status="problem",
            text=f"{result}: ranges of your own are lost under nsys 2022.4 and 2023.x, which deny that they listen; "
            "perfscope's arrive",
            advice="with such an nsys: pip install 'nvtx<0.2.12'",
        )
    return Check(name="nvtx", status="ok", text=result)


def _perf() -> Check:
    try:
        level = int(PERF_PARANOID.read_text())
    except (OSError, ValueError):
        return Check(name="perf events", status="absent", text="this kernel has none")
    if level > MOST_PARANOID and os.geteuid() != 0:
        return Check(
            name="perf events",
            status="problem",
            text=f"perf_event_paranoid is {level}: CPU sampling is refused",
            advice=f"sysctl kernel.perf_event_paranoid={MOST_PARANOID} (as root)",
        )
    return Check(name="perf events", status="ok", text=f"perf_event_paranoid is {level}")


def _variables() -> Check:
    """Names only: a value may be anything."""
    names = sorted(name for name in os.environ if name.startswith("PERFSCOPE_"))
    unknown = [name for name in names if name not in KNOWN_VARIABLES]
    if unknown:
        return Check(name="PERFSCOPE_*", status="problem", text=f"set and not known: {', '.join(unknown)}")
    return Check(name="PERFSCOPE_*", status="ok", text=", ".join(names) or "none set")


def _disk() -> Check:
    path = Path(RUNS_FOLDER) if Path(RUNS_FOLDER).is_dir() else Path()
    free = shutil.disk_usage(path).free
    if free < LEAST_FREE:
        return Check(name="disk", status="problem", text=f"{format_bytes(free)} free where runs are kept")
    return Check(name="disk", status="ok", text=f"{format_bytes(free)} free where runs are kept")


def _native() -> Check:
    if native.library() is None:
        return Check(name="native library", status="absent", text=native.state(), advice=native.ADVICE)
    return Check(name="native library", status="ok", text=native.state())


CHECKS: tuple[Callable[[], Check], ...] = (
    partial(_smi, "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
    partial(_smi, "rocm-smi", "--showdriverversion", "--csv"),
    _nsys,
    _nvtx,
    _perf,
    _native,
    _variables,
    _disk,
)
"""Checks besides torch, in the order of the output."""


# Programs that do work of known amount: `perfscope doctor --self-test` captures them.


PROGRAMS = {"torch": "perfscope.workloads.known", "jax": "perfscope.workloads.jax.known"}
SECONDS = 60.0
"""For all captures together; a program takes about four, most of them for importing its framework."""


def installed(framework: str) -> bool:
    """Whether its known programs can run."""
    return find_spec(framework) is not None


def capture_known(framework: str, scratch: Path, *, twin: bool, seconds: float) -> tuple[Path, dict[str, Any]] | Check:
    """Run the known program under ``perfscope run``: its run and its amounts; a problem if there is no capture."""
    name = f"{framework}{'-twin' if twin else ''}"
    truth, runs = scratch / f"{name}.json", scratch / name
    own = ("run", "--quiet", "--no-report", "--output", str(runs), "--name", name)
    program = ("-m", PROGRAMS[framework], str(truth), *(["--twin"] if twin else []))
    check = f"{framework} capture"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "perfscope", *own, *program],
            cwd=scratch,
            env={**os.environ, "PYTHONPATH": path_with_package()},
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=max(seconds, 1.0),
        )
    except subprocess.TimeoutExpired:
        return Check(name=check, status="problem", text=f"{name}: not done within {SECONDS:.0f} s in all")
    found = sorted(runs.glob(f"*/{RUN_FILE}"))
    if done.returncode or not found or not truth.exists():
        last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        return Check(name=check, status="problem", text=f"{name} failed with code {done.returncode}: {last}")
    return found[0].parent, json.loads(truth.read_text())
