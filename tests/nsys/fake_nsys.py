"""An ``nsys`` for tests: a script that answers as a version does, runs the program, and hands out a given export.

Its Python is isolated (``-I``), so that it does not pass for a process of the program.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

HELP = """
\t-t, --trace=

\t   Possible values are 'cuda', 'nvtx', 'osrt' or 'none'.
\t   Select the API(s) to trace.

\t-s, --sample=
\t--cpuctxsw=
\t-o, --output=
\t-f, --force-overwrite=
\t-c, --capture-range=
\t--capture-range-end=
\t-p, --nvtx-capture=
\t-e, --env-var=
\t--wait=
"""

SCRIPT = """#!{python} -I
import json, os, subprocess, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
if words[0] == "--version":
    print("NVIDIA Nsight Systems version {version}-abc")
elif words[0] == "export":
    if {export!r} is None:
        print("Exportation error: Version number is invalid", file=sys.stderr)
        sys.exit(1)
    target = next(word for word in words if word.startswith("--output=")).partition("=")[2]
    with open(target, "wb") as file:
        file.write(open({export!r}, "rb").read())
elif words[0] == "profile" and any(word.endswith("=help") for word in words):
    print({counters!r})
elif words[0] == "profile" and words[1] == "--help":
    print({help!r})
else:
    print("Generating a report")
    place = next(at for at, word in enumerate(words) if word.startswith("--output="))
    os.umask(0)
    done = subprocess.run(words[place + 1:], close_fds=False)
    if {leaves!r}:
        with open(words[place].partition("=")[2] + {leaves!r}, "w") as file:
            file.write("NVIDIA Tegra Profiler Report, TOKEN=hunter2")
    sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)
"""


@dataclass(frozen=True, kw_only=True)
class FakeNsys:
    """Its location, and its calls."""

    folder: Path

    @property
    def path(self) -> str:
        """``PATH`` with it in front."""
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"

    def asked(self) -> list[list[str]]:
        """Its arguments, call by call."""
        import json

        log = self.folder / "asked"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def profiled(self) -> list[str]:
        """The arguments of the one recording, its own and the program's."""
        (line,) = [words for words in self.asked() if words[0] == "profile" and "=help" not in words[-1] and words[2:]]
        return line


def put(
    folder: Path,
    *,
    export: Path | None = None,
    version: str = "2024.5.1",
    options: str = HELP,
    counters: str = "NVIDIA GPUs not found, feature is not available",
    leaves: str = ".nsys-rep",
) -> FakeNsys:
    """Write the script into ``folder``. ``export``: what `nsys export` writes; without, it fails."""
    folder.mkdir()
    script = folder / "nsys"
    script.write_text(
        SCRIPT.format(
            python=sys.executable,
            log=str(folder / "asked"),
            version=version,
            export=None if export is None else str(export),
            counters=counters,
            help=options,
            leaves=leaves,
        )
    )
    script.chmod(0o755)
    return FakeNsys(folder=folder)
