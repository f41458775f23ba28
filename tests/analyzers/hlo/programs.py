"""HLO text for tests: a module around given lines, and reading it."""

from __future__ import annotations

from perfscope.analyzers.hlo.module import HloModule, Instruction
from perfscope.analyzers.hlo.text import module_of

ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
"""


def program(entry: str, *, header: str = "", before: str = "") -> str:
    """A module whose entry computation has the given lines."""
    return f"HloModule jit_f{header}\n\n{before}\nENTRY %main (p: f32[8]) -> f32[8] {{\n{entry}\n}}\n"


def parsed(text: str) -> HloModule:
    return module_of(text.splitlines(keepends=True), "m.txt")


def instruction(line: str, before: str = "") -> Instruction:
    """The instruction of a line that may use ``%p`` (f32[8]) and ``%q`` (f32[8])."""
    first = "  %p = f32[8]{0} parameter(0)\n  %q = f32[8]{0} parameter(1)\n"
    return parsed(program(first + line, before=before)).entry_computation().instructions[-1]
