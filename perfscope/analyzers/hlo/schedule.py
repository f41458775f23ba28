"""The order in which one run of a program goes through its instructions, loops and branches laid out flat.

As in XLA's live ranges: what a loop, a branch or a call runs stands before the instruction that runs it, once.
"""

from __future__ import annotations

from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction

RUNS = frozenset({"while", "conditional", "call"})
"""Opcodes that run the computations they call, one instruction after another."""


class Schedule:
    """Positions of the instructions that run. What fusions and reductions hold has none."""

    def __init__(self, module: HloModule) -> None:
        """Linear in the module; readers refuse calls that go in a circle or too deep."""
        self.computations: dict[str, Computation] = {}
        """Those that run, each once, callees first."""
        self.positions: dict[str, int] = {}
        self.begins: dict[str, int] = {}
        """Where what an instruction runs begins: its own position where it runs nothing."""
        self.instructions: dict[str, Instruction] = {}
        self._lay(module, module.entry)

    def __len__(self) -> int:
        return len(self.instructions)

    def _lay(self, module: HloModule, name: str) -> None:
        computation = module.computations[name]
        for one in computation.instructions:
            begin = len(self.instructions)
            for called in one.called if one.opcode in RUNS else ():
                if called not in self.computations:
                    self._lay(module, called)
            self.begins.setdefault(one.name, begin)
            self.positions.setdefault(one.name, len(self.instructions))
            self.instructions.setdefault(one.name, one)
            if one.wraps:  # buffers are named after the operation that a start runs
                self.positions.setdefault(one.wraps, self.positions[one.name])
        self.computations[name] = computation
