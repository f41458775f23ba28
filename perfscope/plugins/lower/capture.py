"""Running a program so that its compiler writes every stage: XLA's and JAX's dumps, torch's structured log."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Literal

from perfscope.model.errors import DataError, NotStartedError

Run = Literal["cold", "warm"]
COLD: Run = "cold"
WARM: Run = "warm"
CACHE = "cache"
"""Folders of the first and second run, and of the compilers' caches."""
MOST_PROGRAMS = 200
"""Programs after which XLA writes no more dumps; each has tens of files."""
_DUMP = (
    "--xla_dump_hlo_as_text --xla_dump_hlo_as_proto=false --xla_dump_hlo_pass_re=.* "
    f"--xla_dump_max_hlo_modules={MOST_PROGRAMS}"
)
_GRACE_S = 20.0
"""Seconds from SIGTERM to SIGKILL: the profile is written in them."""
_ERROR = re.compile(r"[\w.]*(?:Error|Exception|Interrupt)\b")
"""Line of a traceback with the type of the error."""


def run_program(
    folder: Path, framework: str, words: tuple[str, ...], *, module: bool, warm: bool, limit_s: float
) -> str:
    """Run the program, twice with ``warm``, and return how it ended early, or an empty text.

    ``DataError`` if it failed before it compiled anything.
    """
    if not module and not Path(words[0]).is_file():
        raise NotStartedError(f"{words[0]}: no such file")
    failed = _run(folder, COLD, framework, words, module=module, limit_s=limit_s)
    if warm and not failed:
        failed = _run(folder, WARM, framework, words, module=module, limit_s=limit_s)
    shutil.rmtree(folder / CACHE, ignore_errors=True)
    return failed


def _run(folder: Path, name: Run, framework: str, words: tuple[str, ...], *, module: bool, limit_s: float) -> str:
    here = folder / name
    here.mkdir(parents=True)
    (folder / CACHE).mkdir(exist_ok=True)
    command = [sys.executable, "-m", "perfscope.plugins.lower.child", str(here.resolve()), framework,
               "module" if module else "script", *words]  # fmt: skip
    environment = _environment(here.resolve(), (folder / CACHE).resolve(), framework, dumps=name == COLD)
    with (here / "output.txt").open("wb") as output:
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            code = child.wait(limit_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            return f"the program was ended after {limit_s:g} s (--limit)"
        except BaseException:
            child.kill()
            child.wait()
            raise
    if code == 0:
        return ""
    said = _error((here / "output.txt").read_text(errors="replace")) or f"exit code {code}"
    if not any(file.name != "output.txt" for file in here.rglob("*") if file.is_file()):
        raise DataError(f"{words[0]}: failed before it compiled anything: {said}")
    return f"the program failed: {said}"


def _error(output: str) -> str:
    """The last error in the output, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if _ERROR.match(line)), lines[-1] if lines else "")


def _environment(here: Path, cache: Path, framework: str, *, dumps: bool) -> dict[str, str]:
    """The environment of the child; it finds the perfscope of this process."""
    own = str(Path(__file__).resolve().parents[3])
    known = os.environ
    result = {**known, "PYTHONPATH": os.pathsep.join(filter(None, (own, known.get("PYTHONPATH"))))}
    if framework == "torch":
        result |= {
            "TORCH_TRACE": str(here), "INDUCTOR_PROVENANCE": "1", "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }  # fmt: skip
        return result
    result |= {
        "JAX_PLATFORMS": known.get("JAX_PLATFORMS", "cpu"), "JAX_ENABLE_COMPILATION_CACHE": "true",
        "JAX_COMPILATION_CACHE_DIR": str(cache / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }  # fmt: skip
    if dumps:
        flags = f"--xla_dump_to={here / 'xla'} {_DUMP}"
        result |= {
            "XLA_FLAGS": " ".join(filter(None, (known.get("XLA_FLAGS"), flags))),
            "JAX_DUMP_IR_TO": str(here / "xla" / "jax"), "JAX_DUMP_IR_MODES": "jaxpr,stablehlo",
        }  # fmt: skip
    return result
