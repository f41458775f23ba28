"""Python frames as Kineto names them, and the owner of their code: the user, a library or perfscope.

Kineto writes ``file.py(12): function``. The line is where the function's definition begins, not the
line that runs (PyTorch 2.13: the frame's line is read when the function is entered); for a function
that was already running when recording began, it is the line that ran then. Paths lose the prefix
they share with ``sys.path``, so ``torch/nn/modules/module.py`` represents the installed file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

_FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)", re.DOTALL)
_MODULE = "nn.Module: "

FRAMEWORK_PACKAGES = (
    "torch", "torchgen", "functorch", "torch_xla", "triton", "numpy", "jax", "jaxlib", "perfscope", "nvtx",
)  # fmt: skip
"""Packages whose frames are never the place to change."""

_PROGRAMS = "perfscope/workloads/"
"""Programs to profile that come with perfscope: a user's own, as far as a stack is concerned."""

_PROFILER = re.compile(r"(^|/)perfscope/(profiler/|commands/|__main__\.py\b)")
"""Files of perfscope on a profiled program's stack, also if it is installed from a checkout."""

_STANDARD = (
    "_weakrefset", "abc", "ast", "asyncio", "collections", "concurrent", "contextlib", "copy", "copyreg",
    "dataclasses", "enum", "functools", "genericpath", "importlib", "inspect", "json", "logging", "multiprocessing",
    "pickle", "posixpath", "queue", "random", "re", "runpy", "selectors", "socket", "tempfile", "threading",
    "typing", "warnings", "weakref",
)  # fmt: skip
"""Standard library modules between a user's line and an op. Not the whole library: a
user's own ``profile.py`` or ``test.py`` has the name of a standard module."""

_HOOKS = ("__torch_function__", "__torch_dispatch__")
"""Functions torch calls on its own behalf: not the line that asked for the op."""

_INSTALLED = re.compile(r"(^|/)(site-packages|dist-packages)/")
_GENERATED = re.compile(r"(^|/)(?P<folder>[a-z2-7]{2})/c(?P=folder)[a-z2-7]{49}\.py$")
"""Output code of torch's inductor in its cache: ``5n/c5ncrw...py``, a hash in a folder of its first two characters."""
_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.+)_at_\d+")
_LIBRARY_FOLDER = re.compile(r"(^|/)lib/python3(\.\d+)?/")


def is_profilers(frame: str) -> bool:
    """Whether a file, or a frame as Kineto names it, is perfscope's own in a profiled program."""
    return _PROFILER.search(frame.partition("): ")[0]) is not None


class Owner(IntEnum):
    """Whose code a frame is."""

    USER = 0
    LIBRARY = 1
    """An installed package that is not a framework: the place if no frame of the user's is there."""
    FRAMEWORK = 2
    """Torch, the standard library, built-in functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One Python function on a stack. ``line``: begin of its definition (see the module)."""

    file: str
    line: int
    function: str
    owner: Owner


@lru_cache(maxsize=65536)
def parse_frame(name: str) -> Frame | None:
    """The frame of a Kineto Python span; None for built-in functions and modules."""
    match = _FRAME.fullmatch(name)
    if match is None or name.startswith(("<built-in", _MODULE)):
        return None
    file = match["file"]
    owner = Owner.FRAMEWORK if match["function"] in _HOOKS else owner_of(file)
    resumed = _RESUMED.fullmatch(match["function"])  # what dynamo made of the function after a graph break
    function = resumed["function"] if resumed else match["function"]
    return Frame(file=file, line=int(match["line"]), function=function, owner=owner)


def parse_module(name: str) -> str | None:
    """``Linear_0`` of ``nn.Module: Linear_0``; None for other spans."""
    return name.removeprefix(_MODULE) if name.startswith(_MODULE) else None


def owner_of(file: str) -> Owner:
    """Whose file it is, judged by its path alone."""
    path = file.replace("\\", "/")
    # <frozen importlib._bootstrap>, <string>, <__array_function__ internals>; code that inductor wrote; hooks of ours
    if path.startswith("<") or _GENERATED.search(path) or is_profilers(path):
        return Owner.FRAMEWORK
    installed = _INSTALLED.search(path)
    standard = None if installed else _LIBRARY_FOLDER.search(path)
    tail = path[installed.end() :] if installed else path[standard.end() :] if standard else path
    package = tail.split("/", 1)[0].removesuffix(".py")
    if tail.startswith(_PROGRAMS):
        return Owner.USER
    if standard or package in FRAMEWORK_PACKAGES or (package in _STANDARD and not path.startswith("/")):
        return Owner.FRAMEWORK
    return Owner.LIBRARY if installed else Owner.USER
