"""Plans over a pretended device in processes that may die of it, and says why where that was not to be.

A trial of a few tensors comes first, then the program itself; each is a child of the child that plans, and what the
second one says is passed on only when it got through. Whatever else happens, the caller plans the usual way.
"""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from perfscope.model.documents import compile_request as requests
from perfscope.model.documents.compile_request import Limits, Part, Request, TargetRequest
from perfscope.profiler.ahead.common.child_process import ChildExit, default_memory_limit, run_child

if TYPE_CHECKING:
    from perfscope.profiler.ahead.common.child import EventWriter

TRIAL_SECONDS = 180.0
"""A trial takes five; torch from a cold disk, on a machine with other work, takes a minute."""
SHARE_OF_TIME = 0.5
"""Of the time there is, for the program under the pretence: the other half is for the usual way."""
OPTION = "--pretend-device"
_OWN_FAULT = re.compile(r"^perfscope's own fault: ")


def plan_pretended(request: Request, said: EventWriter) -> str | None:
    """Plan over the pretended device and say so; else why that was not to be, as a note of the plan (one line)."""
    why = _unfit(request) or trial(request.target)
    if why is None:
        why = _plan(request, said)
    return None if why is None else f"{OPTION}: {why}; planned over CPU tensors instead"


def trial(target: TargetRequest, *, seconds: float = TRIAL_SECONDS) -> str | None:
    """Whether a forward, a backward and an optimizer's step over a few pretended tensors get through; why not."""
    asked = Request(
        framework="torch", arguments=("trial",), module=False, target=target, pretend_device=True,
        limits=Limits(seconds=seconds, memory_bytes=default_memory_limit()),
    )  # fmt: skip
    ended, heard = _child(asked, "trial", seconds)
    return _why_not("a trial of it", ended, heard)


def _unfit(request: Request) -> str | None:
    if request.target.vendor != "NVIDIA":
        return f"{request.target.device} is no device of NVIDIA's"
    return None


def _plan(request: Request, said: EventWriter) -> str | None:
    """The program itself. What it said is passed on where a plan came of it."""
    seconds = request.limits.seconds * SHARE_OF_TIME
    said("progress", text="planning over a pretended device")
    ended, heard = _child(request, "pretended", seconds)
    why = _why_not("the program under it", ended, heard) or _unplanned(heard)
    if why is not None:
        shutil.rmtree(Path(request.folder) / "plans", ignore_errors=True)
        (Path(request.folder) / "plans").mkdir(exist_ok=True)
        return why
    for one in heard:
        if one["event"] not in ("loaded", "done", "progress"):
            said(**one)
    return None


def _child(request: Request, part: Part, seconds: float) -> tuple[ChildExit, list[dict[str, Any]]]:
    """How a child of our own ended, and what it said."""
    heard: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="perfscope-pretend-") as folder:
        scratch = Path(folder)
        asked = scratch / "request.json"
        asked.write_bytes(requests.dump(msgspec.structs.replace(request, part=part)))
        until = time.monotonic() + seconds
        ended = run_child(asked, scratch, heard.append, until=until, memory_bytes=request.limits.memory_bytes)
    return ended, heard


def _why_not(what: str, ended: ChildExit, heard: list[dict[str, Any]]) -> str | None:
    """Why a child did not get through, in a line."""
    if ended.stopped is not None:
        return f"{what} did not end in its time or memory ({ended.stopped})"
    for one in heard:
        if one["event"] == "failed":
            return f"{what} failed: {_OWN_FAULT.sub('', str(one.get('reason')))}"
    if any(one["event"] == "done" for one in heard):
        return None
    if ended.code < 0:
        return f"{what} was ended by {signal.Signals(-ended.code).name}{_last(ended)}"
    return f"{what} ended with code {ended.code}{_last(ended)}"


def _last(ended: ChildExit) -> str:
    """What C++ said last, where it says so before it ends the process."""
    lines = [line for line in ended.tail if "what():" in line or "terminate called" in line]
    return f": {lines[-1].strip()[:200]}" if lines else ""


def _unplanned(heard: list[dict[str, Any]]) -> str | None:
    """Why what was planned is no plan of the program."""
    for one in heard:
        if one["event"] == "failure":
            return f"the program under it raised {one['failure'].get('text')}"
    if any(one["event"] == "planned" and one["program"].get("name") != NO_GRAPH for one in heard):
        return None
    for one in heard:
        if one["event"] == "not_planned":
            return f"no graph of the program could be planned over it: {one['what'].get('reason')}"
    return "the program has nothing on cuda that could be planned"


NO_GRAPH = "no graph"
"""What a plan without graphs is called in the manifest."""
