"""Choice of the capturing processes, if the program starts others: the first with steps, and the ranks of its job."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from perfscope.model.capture import Message
from perfscope.model.documents.run import STEPS_FILE
from perfscope.profiler.session.ranks import rank_from_environment

FIRST_CHILD = ".child-steps-seen"
"""Made by the first process with steps that the program started and that has no rank."""


def claim_steps(run: Path, message: Message) -> bool:
    """Whether this process, whose steps are known now, captures.

    A process that the program started does not if an earlier one has steps. Among several without a rank only the
    first does: they are not a job. A process may claim again, when it finds a better source of steps.
    """
    if not message.child:
        (run / STEPS_FILE).touch()
        return True
    if (run / STEPS_FILE).exists():
        return False
    distributed: Any = sys.modules.get("torch.distributed")
    if rank_from_environment(os.environ) is not None:
        return True
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return True
    claim, me = run / FIRST_CHILD, str(os.getpid())
    try:
        with claim.open("x", encoding="ascii") as file:
            file.write(me)
    except FileExistsError:
        return claim.read_text(encoding="ascii") == me
    return True


def forked_as_process(frame: FrameType | None) -> bool:
    """Whether the fork in which ``frame`` runs is a process of ``multiprocessing`` and no worker of a data loader."""
    process = False
    while frame is not None:
        path = frame.f_code.co_filename.replace(os.sep, "/")
        if "torch/utils/data/" in path:
            return False
        process = process or path.endswith("multiprocessing/popen_fork.py")
        frame = frame.f_back
    return process


def at_process_end(finish: Callable[[], None]) -> None:
    """Have ``finish()`` called at the end of a process of ``multiprocessing``, which a fork ends without ``atexit``."""
    processes: Any = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        sys.modules["multiprocessing.util"].Finalize(None, finish, exitpriority=0)
