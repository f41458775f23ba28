"""Which line an instruction serves that has none of its own: copies, zeros and layout changes that XLA adds."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from perfscope.analyzers.hlo.module import Computation, Instruction

FURTHEST = 64
"""Instructions looked at for one answer; what XLA adds stands next to what it serves."""


def users_of(computation: Computation) -> Mapping[str, tuple[Instruction, ...]]:
    """Instructions that read each instruction of a computation, in its order."""
    found: dict[str, list[Instruction]] = {}
    for one in computation.instructions:
        for name in dict.fromkeys(one.operands):
            found.setdefault(name, []).append(one)
    return {name: tuple(users) for name, users in found.items()}


def served(instruction: Instruction, users: Mapping[str, tuple[Instruction, ...]]) -> Instruction | None:
    """The nearest reader of its value that has a source line, through others that have none.

    A value that a loop carries serves the line of the loop. Nearest by steps, then by the order of the program;
    ``None`` if there is no such reader within ``FURTHEST`` instructions.
    """
    seen, queue = {instruction.name}, deque([instruction.name])
    while queue and len(seen) <= FURTHEST:
        for user in users.get(queue.popleft(), ()):
            if user.file is not None:
                return user
            if user.name not in seen:
                seen.add(user.name)
                queue.append(user.name)
    return None
