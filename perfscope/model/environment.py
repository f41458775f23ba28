"""Facts on the machine for a manifest: an allow-list, without environment variables, host or user names."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from msgspec import Struct

PACKAGES = (
    "accelerate",
    "deepspeed",
    "flash-attn",
    "flax",
    "jax",
    "jaxlib",
    "lightning",
    "numpy",
    "nvtx",
    "perfscope",
    "torch",
    "torchvision",
    "transformers",
    "triton",
    "xformers",
)
"""Packages whose version can explain a change of speed."""

BRANCH_VARIABLES = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME")
"""Variables with the branch: GitHub (pull request, else push) and GitLab."""

CPU_INFO = Path("/proc/cpuinfo")

SECONDS = 5.0
"""A driver tool that takes longer hangs; the program is not kept waiting for it."""

_SMI_FIELDS = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit")


class Gpu(Struct, frozen=True, kw_only=True):
    """One device as the driver's tool shows it; texts carry their units."""

    name: str
    driver: str
    clocks: dict[str, str]


def packages() -> dict[str, str]:
    """Versions of the listed packages that are installed for this interpreter."""
    result = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            result[name] = version(name)
    return result


def platform_facts() -> dict[str, str]:
    """Operating system, processor and its architecture, without names of the machine."""
    facts = {"system": platform.system(), "release": platform.release(), "machine": platform.machine()}
    cpu = cpu_model()
    return facts if cpu is None else facts | {"cpu": cpu}


def cpu_model() -> str | None:
    """Name of the processor; ``None`` if the system has none (many ARM processors)."""
    try:
        with CPU_INFO.open(encoding="utf-8", errors="replace") as lines:
            text = next((line for line in lines if line.startswith("model name")), "")
    except OSError:  # no Linux
        text = f":{tool_output('sysctl', '-n', 'machdep.cpu.brand_string') or ''}"
    return " ".join(text.partition(":")[2].split()) or None


def git_facts() -> dict[str, str | bool] | None:
    """Commit, branch and dirty flag of the current folder, or ``None`` outside a repository."""
    commit = tool_output("git", "rev-parse", "HEAD")
    if commit is None:
        return None
    status = tool_output("git", "--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    facts: dict[str, str | bool] = {"commit": commit.strip()}
    branch = git_branch()
    if branch is not None:
        facts["branch"] = branch
    return facts if status is None else facts | {"dirty": bool(status.strip())}


def git_branch() -> str | None:
    """The branch that is checked out: from git, or from a CI service, which checks out a commit."""
    text = (tool_output("git", "symbolic-ref", "--quiet", "--short", "HEAD") or "").strip()
    return text or next((os.environ[name] for name in BRANCH_VARIABLES if os.environ.get(name)), None)


def nvidia_gpus() -> list[Gpu]:
    """The GPUs that nvidia-smi lists; empty if it is absent or fails."""
    text = tool_output("nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader")
    gpus = []
    for line in (text or "").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_SMI_FIELDS):
            clocks = dict(zip(_SMI_FIELDS[2:], cells[2:], strict=True))
            gpus.append(Gpu(name=cells[0], driver=cells[1], clocks=clocks))
    return gpus


def tool_output(*command: str) -> str | None:
    """Output of a tool, or ``None`` if it is absent, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


Status = Literal["ok", "absent", "problem"]


class Check(Struct, frozen=True, kw_only=True):
    """One thing that `perfscope doctor` looked at. ``absent``: not there, and fine; ``problem``: something to do."""

    name: str
    status: Status
    text: str
    advice: str | None = None
