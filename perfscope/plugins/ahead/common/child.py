"""The child process: runs the user's program for an absent machine, and compiles or plans what it calls.

``python -m perfscope.plugins.ahead.common.child REQUEST.json [FD]``. Events are written as JSON lines to the file
descriptor ``FD`` (default: standard output), see `EventWriter`. Only this process has plugins on its path. It may end
in any way (XLA aborts on unknown input); finished programs are on disk by then.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfscope.plugins.ahead.request import Request

FAILED = 3
"""Exit code if a ``failed`` event has the reason."""
PR_SET_PDEATHSIG = 1
MAX_TRACEBACK_LINES = 8
"""Most lines of a traceback outside of our code."""


class EventWriter:
    """Writes events for the parent: ``{"event": ..., ...}``.

    ``loaded`` (versions), ``checkpoint`` (outcome for the layers, notes), ``seen`` (programs, notes, why it stopped),
    ``compiling``, ``compiled``, ``refused``, ``unwanted`` (number of the program), ``planned``, ``not_planned``,
    ``stopped``, ``failure``, ``note``, ``progress``, ``failed`` (reason), ``done``.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._stream = os.fdopen(1 if descriptor is None else descriptor, "w", buffering=1, closefd=False)

    def __call__(self, event: str, **what: Any) -> None:
        """Write one event at once."""
        self._stream.write(json.dumps({"event": event, **what}) + "\n")
        self._stream.flush()


def main() -> None:
    """Carry out the request; problems that a person can fix are reported without a traceback."""
    _make_perfscope_importable()
    _die_with_parent()
    from perfscope.model.errors import PerfscopeError
    from perfscope.plugins.ahead import request as requests

    writer = EventWriter(int(sys.argv[2]) if len(sys.argv) > 2 else None)
    request = requests.load(Path(sys.argv[1]))
    os.environ.update(request.environment)
    try:
        if request.framework == "torch":
            _find_torch_planner(request, writer)
            from perfscope.plugins.ahead.torch.child import plan_program

            plan_program(request, writer)
        else:
            from perfscope.plugins.ahead.jax.child import compile_all

            compile_all(request, writer)
    except PerfscopeError as error:
        writer("failed", reason=str(error))
        sys.stdout.flush()
        os._exit(FAILED)
    except BaseException as error:
        lines = traceback.format_exc().strip().splitlines()
        writer(
            "failed",
            reason=f"perfscope's own fault: {type(error).__name__}: {error}",
            lines=lines[-MAX_TRACEBACK_LINES:],
        )
        os._exit(FAILED)
    writer("done")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of a program stopped midway would keep this process alive, and so would its atexit handlers


def _find_torch_planner(request: Request, writer: EventWriter) -> None:
    """Put the packages for planning on the path; ``DataError`` with one line if they are missing."""
    from perfscope.model.errors import DataError
    from perfscope.plugins.ahead.targets import plugins

    plugin = plugins.find("torch")
    if isinstance(plugin, plugins.MissingPlugin):
        raise DataError(f"torch programs cannot be planned: {plugin.reason}; {plugin.advice()}")
    if plugin.own_folder and str(plugin.folder) not in sys.path:
        sys.path.append(str(plugin.folder))
    writer("loaded", versions=plugin.versions, notes=[] if plugin.note is None else [plugin.note])
    if request.target.machine.platform != "gpu":
        raise DataError(f"{request.target.machine.asked}: PyTorch programs are planned for GPUs only")
    torch = plugin.versions["torch"]
    if tuple(int(part) for part in re.findall(r"\d+", torch)[:2]) < (2, 12):
        raise DataError(f"torch {torch} cannot plan without a device; 2.13 is known to work")


def _die_with_parent() -> None:
    """Ask the kernel to kill this process if its parent dies. Set here, because the parent may have threads."""
    import ctypes
    import signal

    parent = os.getppid()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(FAILED)


def _make_perfscope_importable() -> None:
    """Remove the folder that Python puts first on the path for this file, and make perfscope importable."""
    if sys.path and not sys.flags.safe_path and sys.path[0] in (str(Path(__file__).parent), str(Path.cwd()), ""):
        del sys.path[0]
    if importlib.util.find_spec("perfscope") is None:
        sys.path.append(str(Path(__file__).resolve().parents[4]))


if __name__ == "__main__":
    main()
