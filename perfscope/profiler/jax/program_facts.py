"""Settings of a JAX program that cost time in every step, and Pallas kernels that are interpreted, at the user's line.

Only calls that a program makes rarely are watched: changes of jax's configuration, and the lowering of kernels.
"""

from __future__ import annotations

import sys
from types import CodeType

from perfscope.model.documents.run import ProgramFact
from perfscope.profiler.jax import compat, pallas_costs
from perfscope.profiler.jax.eager_loop import EagerLoop
from perfscope.profiler.jax.record_log import CallSites
from perfscope.profiler.jax.single_operations import SingleOperations
from perfscope.profiler.patching import Undo

DISABLE_JIT = "jax_disable_jit"
SWITCHES = (DISABLE_JIT, "jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks", "jax_enable_checks")
"""Settings for finding errors. All are off by default."""

X64 = "jax_enable_x64"
"""Not a search for errors: numbers are float64 if the program sets this option."""

STEP_CALLS, OTHER_CALLS = "jitted_step", "jitted_calls"
"""Names of facts: the function that makes the steps, and another jitted function, with their calls in the run."""
MOST_FUNCTIONS = 20
"""Functions whose calls are kept, those with most calls."""

MOST_FACTS = 50
"""Facts that are kept of one process."""


class JaxFacts:
    """Settings and interpreted functions of one process, each kind and line once."""

    def __init__(self, sites: CallSites) -> None:
        self._sites = sites
        self._set_at: dict[str, tuple[str, int]] = {}
        self._kernels: dict[tuple[str | None, int | None], int] = {}
        self._undo: list[Undo] = []
        self._pallas = False

    def watch(self) -> None:
        """Hook jax, which is imported."""
        self._undo.append(compat.on_config_update(self._updated))
        self._undo.append(compat.on_disable_jit(lambda: self._updated(DISABLE_JIT)))

    def look(self) -> None:
        """Hook Pallas, once the program has imported it. Called before a function is lowered."""
        if not self._pallas:
            undo = compat.on_interpreted_kernel(self._interpreted)
            self._pallas = undo is not None
            if undo is not None:
                self._undo.append(undo)
            costs = pallas_costs.state_costs() if self._pallas and set(compat.backends()) - {"cpu"} else None
            if costs is not None:
                self._undo.append(costs)

    def stop(self) -> None:
        """Leave jax as it was."""
        while self._undo:
            self._undo.pop()()

    def noted(self, unjitted: EagerLoop | None, outside: SingleOperations | None) -> tuple[ProgramFact, ...]:
        """All facts of now.

        ``unjitted``: the loop of single operations whose turns are the steps; ``outside``: those outside a jitted step.
        """
        facts = []
        if unjitted is not None and unjitted.function is not None:
            code = unjitted.function
            facts.append(
                ProgramFact(
                    name="unjitted_step", value=code.co_name if unjitted.calls else "",
                    file=self._sites.name(code.co_filename), line=unjitted.line, count=unjitted.operations,
                )
            )  # fmt: skip
        if outside is not None and outside.per_step:
            function, path, line = outside.place()
            file = None if path is None else self._sites.name(path)
            facts.append(
                ProgramFact(name="single_operations", value=function, file=file, line=line, count=outside.per_step)
            )
        for name in (*SWITCHES, X64):
            left = name == DISABLE_JIT and unjitted is not None and name in self._set_at  # `with jax.disable_jit()`
            if compat.setting(name) or left:
                file, line = self._set_at.get(name, (None, None))
                facts.append(ProgramFact(name=name, value="true", file=file, line=line))
        for (file, line), count in self._kernels.items():
            facts.append(ProgramFact(name="pallas_interpret", value="true", file=file, line=line, count=count))
        return tuple(facts)

    def calls(self, counts: tuple[tuple[CodeType, int, bool], ...]) -> tuple[ProgramFact, ...]:
        """Calls of the function that makes the steps, and of other jitted functions; empty without others."""
        if len(counts) < 2 or not counts[0][2]:
            return ()
        return tuple(
            ProgramFact(
                name=STEP_CALLS if is_step else OTHER_CALLS, value=code.co_name,
                file=self._sites.name(code.co_filename), line=code.co_firstlineno, count=calls,
            )
            for code, calls, is_step in counts[:MOST_FUNCTIONS]
        )  # fmt: skip

    def _updated(self, name: str) -> None:
        if name in SWITCHES or name == X64:
            site = self._sites.here(sys._getframe(1))
            if site is not None:
                self._set_at[name] = (site.file, site.line)

    def _interpreted(self) -> None:
        place = compat.line_being_lowered()
        key = (None, None) if place is None else (self._sites.name(place[0]), place[1])
        if key in self._kernels or len(self._kernels) < MOST_FACTS:
            self._kernels[key] = self._kernels.get(key, 0) + 1
