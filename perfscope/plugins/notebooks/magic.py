"""The cell magic ``%%perfscope [NAME]``."""

from __future__ import annotations

from typing import Any

from perfscope.model.documents import run_folders
from perfscope.model.errors import PerfscopeError, see
from perfscope.profiler.launch.inside import profile

NOTHING = (
    f"nothing was captured: is torch or jax imported, and is this kernel profiled already?{see('nothing was captured')}"
)


def load_ipython_extension(shell: Any) -> None:
    """Register the magic with an IPython shell; called by ``%load_ext perfscope``."""

    def perfscope(line: str, cell: str) -> Any:
        """Profile the cell, which contains the loop, and return its analysis. ``line``: name of the run."""
        with profile(name=line.strip() or "cell", quiet=True) as captured:
            ran = shell.run_cell(cell)
        if not ran.success:
            return None  # IPython has shown the error
        return _analysis(captured)

    shell.register_magic_function(perfscope, "cell", "perfscope")


def _analysis(captured: Any) -> Any:
    """The analysis, which a notebook draws; without one, ``None`` after a line with the reason."""
    try:
        if captured.directory is None:
            raise PerfscopeError(NOTHING)
        notes = run_folders.read(captured.directory).notes
        if any(process.step_source for process in run_folders.read(captured.directory).processes):
            return captured.analysis()
        raise PerfscopeError("; ".join(notes) or NOTHING)
    except PerfscopeError as error:
        print(f"perfscope: {error}")
        return None
