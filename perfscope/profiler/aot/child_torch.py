"""PyTorch programs in the child: the planner's part, with the plugins on the path that it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from perfscope.profiler.aot import plugins
from perfscope.profiler.aot.request import Request
from perfscope.profiler.errors import DataError

if TYPE_CHECKING:
    from perfscope.profiler.aot.child import Said


def plan_all(request: Request, said: Said) -> None:
    """Plan what the program compiles with torch.compile; ``DataError`` in one line where that cannot be.

    Where the device is to be pretended, that is for children of this one; what they cannot plan is planned here.
    """
    found = plugins.find("torch")
    if isinstance(found, plugins.Absent):
        raise DataError(f"torch programs cannot be planned: {found.reason}; {found.install}")
    if found.own_folder and str(found.folder) not in sys.path:
        sys.path.append(str(found.folder))
    said("loaded", versions=found.versions, notes=[] if found.note is None else [found.note])
    try:
        from perfscope.profiler.aot.torch_plan_child import plan_program
    except ImportError as error:
        raise DataError(f"this perfscope cannot plan torch programs: {error}") from error
    if request.part == "trial":
        from perfscope.profiler.aot.torch_pretend_trial import run_trial

        run_trial()
        return
    (Path(request.folder) / "plans").mkdir(exist_ok=True)
    notes: tuple[str, ...] = ()
    if request.pretend_device and not request.part:
        from perfscope.profiler.aot.torch_pretend_run import plan_pretended

        why = plan_pretended(request, said)
        if why is None:
            return
        request, notes = msgspec.structs.replace(request, pretend_device=False), (why,)
    plan_program(request, said, notes)
