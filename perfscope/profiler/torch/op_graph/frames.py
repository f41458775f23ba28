"""Whose line an op belongs to: one walk of the Python stack, classified by code object."""

from __future__ import annotations

import dis
import linecache
import os
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from perfscope.profiler.source_files import SourceFiles, folder_prefix

USER, LIBRARY, HIDDEN, ENGINE, OPTIMIZER, CHECKPOINT, DATA, CHECKS = range(8)
"""Kind of a frame: the user's; a package's; torch, stdlib or ours; the autograd engine's; an optimizer's ..."""


_GENERATED = os.sep + "torchinductor_"
"""Begin of the name of the folder (the rest is the user's name) to which inductor writes code by default."""


class Site(NamedTuple):
    """Facts from the stack on the op that is being dispatched."""

    file: str | None
    line: int | None
    function: str | None
    engine_before_user: bool
    """The autograd engine is between the op and the user's frame, which only calls ``backward()``."""
    optimizer_before_user: bool
    optimizer: bool
    checkpoint: bool
    data: bool
    """The op belongs to data loading, which stays on the host when the model moves to an accelerator."""
    checkpoint_call: tuple[str, int] | None = None
    """File and line at which the user calls the innermost `checkpoint` around the op."""
    checks: bool = False
    """The op checks the arguments of a distribution."""
    installed: bool = False
    """The file is of an installed package."""
    loop: tuple[str, int] | None = None
    """File and line of the innermost Python loop around the op, outside of torch."""


class Frames(SourceFiles):
    """Classifies frames once per code object and names files as the user would."""

    def __init__(self, torch_file: str, working_folder: Path) -> None:
        super().__init__(working_folder, ())
        self._torch = folder_prefix(Path(torch_file).parent)
        self._modules = folder_prefix(Path(torch_file).parent / "nn" / "modules")
        self._generated = folder_prefix(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or _GENERATED)
        # By id, code object kept: two equal functions of two files are equal as code objects, file name or not.
        self._kinds: dict[int, tuple[CodeType, int]] = {}
        self._loops: dict[int, tuple[CodeType, tuple[Loop, ...]]] = {}

    def site(self, frame: FrameType | None) -> Site:
        """Walks outwards from ``frame`` to the bottom of this thread's stack.

        The user's line is the innermost one outside of torch, also in an installed package. A step of an optimizer
        that a package calls is of the program's own line around it, because the package is not what one changes.
        """
        user_frame: FrameType | None = None
        own_frame: FrameType | None = None
        steps = False
        calls_checkpoint: FrameType | None = None
        innermost = frame
        engine = optimizer_before = optimizer = checkpoint = data = checks = False
        kinds = self._kinds
        while frame is not None:
            code = frame.f_code
            known = kinds.get(id(code))
            if known is None:
                known = kinds[id(code)] = (code, self._kind(code))
            kind = known[1]
            if kind in (USER, LIBRARY):
                if user_frame is None:
                    user_frame, optimizer_before = frame, optimizer
                if own_frame is None and kind == USER:
                    own_frame, steps = frame, optimizer
                if checkpoint and calls_checkpoint is None:
                    calls_checkpoint = frame
            elif kind == ENGINE:
                engine = engine or user_frame is None
            elif kind == OPTIMIZER:
                optimizer = True
            elif kind == CHECKPOINT:
                checkpoint = True
            elif kind == DATA:
                data = True
            elif kind == CHECKS:
                checks = checks or user_frame is None
            frame = frame.f_back
        if user_frame is None:
            return Site(None, None, None, engine, optimizer, optimizer, checkpoint, data, None, checks)
        if own_frame is not None and steps:
            user_frame = own_frame
        code = user_frame.f_code
        call = None
        if calls_checkpoint is not None:
            call = self.name(calls_checkpoint.f_code.co_filename), calls_checkpoint.f_lineno
        return Site(
            self.name(code.co_filename),
            user_frame.f_lineno,
            code.co_qualname,
            engine,
            optimizer_before,
            optimizer,
            checkpoint,
            data,
            call,
            checks,
            kinds[id(code)][1] == LIBRARY,
            self._loop_around(innermost),
        )

    def _loop_around(self, frame: FrameType | None) -> tuple[str, int] | None:
        """File and line of the innermost loop around a frame, outside of torch.

        ``None`` if torch itself loops there (over parameters, in an optimizer); its containers of modules do not count.
        """
        while frame is not None:
            code = frame.f_code
            if self._kinds[id(code)][1] in (USER, LIBRARY):
                loop = self._loop(frame)
                if loop is not None:
                    return loop
            elif self._is_loop_of_torch(frame):
                return None
            frame = frame.f_back
        return None

    def _is_loop_of_torch(self, frame: FrameType) -> bool:
        path = frame.f_code.co_filename
        return path.startswith(self._torch) and not path.startswith(self._modules) and self._loop(frame) is not None

    def _loop(self, frame: FrameType) -> tuple[str, int] | None:
        """File and line of the innermost loop that a frame is in."""
        code, at = frame.f_code, frame.f_lasti
        known = self._loops.get(id(code))
        if known is None:
            known = self._loops[id(code)] = (code, loops_of(code))
        line = next((loop.line for loop in known[1] if loop.begin <= at <= loop.end), None)
        return None if line is None else (self.name(code.co_filename), line)

    def is_user(self, path: str) -> bool:
        """Whether a file is the user's, if a stack is known as text only."""
        return self._kind_of(path, "") in (USER, LIBRARY)

    def _kind(self, code: CodeType) -> int:
        return self._kind_of(code.co_filename, code.co_name)

    def _kind_of(self, path: str, function: str) -> int:
        absolute = os.path.abspath(path)
        if absolute.startswith(self._torch):
            return _torch_kind(absolute[len(self._torch) :].replace(os.sep, "/"), function)
        if _GENERATED in absolute or absolute.startswith(self._generated):
            return HIDDEN  # what torch.compile wrote; the user's line is further out
        if not super().is_user(path):
            return HIDDEN
        return LIBRARY if self.is_installed(path) else USER


class Loop(NamedTuple):
    """A loop of a function, as offsets in its code."""

    begin: int
    end: int
    line: int


def loops_of(code: CodeType) -> tuple[Loop, ...]:
    """The ``for`` and ``while`` loops and comprehensions of a code object, innermost first."""
    lines, at = dict[int, int](), code.co_firstlineno
    ends: dict[int, int] = {}
    for instruction in dis.get_instructions(code):
        at = instruction.positions.lineno if instruction.positions and instruction.positions.lineno else at
        lines[instruction.offset] = at
        jumps_back = "JUMP_BACKWARD" in instruction.opname and "NO_INTERRUPT" not in instruction.opname  # not an await
        if jumps_back and isinstance(instruction.argval, int):
            ends[instruction.argval] = instruction.offset
    loops = [
        Loop(begin, end, min(line for offset, line in lines.items() if begin <= offset <= end))
        for begin, end in ends.items()
    ]
    return tuple(sorted(loops, key=lambda loop: loop.end - loop.begin))


def decides_branch(frame: FrameType) -> bool:
    """True if the frame is deciding a branch (``if t:``, ``while t:``, ``not t``), by its current instruction."""
    opcode = frame.f_code.co_code[frame.f_lasti]
    name = dis.opname[opcode]
    return ("JUMP" in name and "IF" in name) or name in ("TO_BOOL", "UNARY_NOT")


def called_function(frame: FrameType) -> str | None:
    """Name of the function the frame is calling (``F.one_hot(x)``: ``one_hot``); None without its source."""
    line, _, begin, _ = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    if line is None or begin is None:
        return None
    call = linecache.getline(frame.f_code.co_filename, line).encode()[begin:].decode(errors="replace")
    return call.partition("(")[0].rpartition(".")[2] or None


def reads_step_counter(frame: FrameType | None) -> bool:
    """True inside ``torch.optim``'s ``_get_value``: it reads step counters, which torch keeps on the host."""
    return frame is not None and frame.f_code.co_name == "_get_value" and "optim" in frame.f_code.co_filename


def _torch_kind(path: str, function: str) -> int:
    if path == "autograd/__init__.py" or (path == "autograd/graph.py" and function == "_engine_run_backward"):
        return ENGINE
    if path.startswith("optim/") and path != "optim/lr_scheduler.py":
        return OPTIMIZER
    if path == "utils/checkpoint.py":
        return CHECKPOINT
    of_distribution = path == "distributions/distribution.py" and function in ("__init__", "_validate_sample")
    if path == "distributions/constraints.py" or of_distribution:
        return CHECKS
    return DATA if path.startswith("utils/data/") else HIDDEN
