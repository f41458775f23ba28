"""Runs at the start of every Python process of the program, takes itself out again, and waits for torch and jax.

Where only times are taken (A/B) a program with neither is of use too: there it waits for our own marks as well.

It sees the program's interpreter before anything else does, so it does almost nothing: no import of
ours happens before the program imports torch or jax, and an error of ours never stops the program.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import sys
from _thread import get_ident
from types import ModuleType
from typing import Any

VARIABLE = "PERFSCOPE_CAPTURE"
MARKS = "perfscope.profiler.session.annotate"
ERROR_FILE = "program-error.txt"
MOST_ERROR = 500
"""Characters kept of the error that ended the program."""
HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH120 (pathlib costs 5 ms at start)
PACKAGE = os.path.dirname(os.path.dirname(HERE))  # noqa: PTH120


def _leave_no_trace(text: str) -> dict[str, Any]:
    """Give the program the ``sys.path`` and environment it would have without us. Returns the message to us."""
    import json

    sys.path[:] = [entry for entry in sys.path if entry != HERE]
    message: dict[str, Any] = json.loads(text)
    if message["follow"]:
        return message
    del os.environ[VARIABLE]
    if message["pythonpath"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = message["pythonpath"]
    return message


def _attach(text: str, framework: Any) -> None:
    """torch or jax is imported: load our package from where this file lies, and begin."""
    # A session imports the marks itself, and hears them: nobody need wait for them any more.
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not (isinstance(finder, _WaitForFramework) and finder.framework == MARKS)
    ]
    try:
        if "perfscope" not in sys.modules:
            _load_package()
        from perfscope.model.capture import load_message
        from perfscope.profiler.session.session import attach

        attach(load_message(text), "none" if framework == MARKS else framework)
    except Exception as error:
        print(f"perfscope: nothing is captured in this process: {type(error).__name__}: {error}", file=sys.stderr)


def _load_package() -> None:
    """Import ``perfscope`` by its place: the program's interpreter and path need not know it."""
    spec = importlib.util.spec_from_file_location(
        "perfscope",
        os.path.join(PACKAGE, "__init__.py"),  # noqa: PTH118
        submodule_search_locations=[PACKAGE],
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["perfscope"] = module
    spec.loader.exec_module(module)


def _keep_error(directory: str) -> None:
    """At exit: leave the error that ended this process in the run, unless another process left one before."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return
    try:
        lines = str(error).strip().splitlines()
        with open(os.path.join(directory, ERROR_FILE), "x", encoding="utf-8", errors="replace") as stream:  # noqa: PTH118, PTH123
            stream.write(": ".join([type(error).__name__, *lines[:1]])[:MOST_ERROR])
    except Exception:  # noqa: S110 (the program has failed and says so itself)
        pass


class _WaitForFramework:
    """A finder that sees the import of one framework, steps aside, and attaches when the import is done.

    A program that only asks whether the framework is installed (``importlib.util.find_spec``) imports it later, if at
    all: until it does, every answer is watched.
    """

    def __init__(self, text: str, framework: Any) -> None:
        self._text = text
        self.framework = framework
        self._asking: set[int] = set()
        """Threads in which the other finders are asked."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        thread = get_ident()
        if name != self.framework or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking.discard(thread)
        loader: Any = None if spec is None else spec.loader
        if loader is None or "exec_module" in vars(loader):  # the latter: of a loader that is watched already
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            execute(module)
            _attach(self._text, self.framework)

        loader.exec_module = exec_module
        return spec


def _run_the_other() -> None:
    """Run the ``sitecustomize`` that Python would have run had ours not been first."""
    ours = sys.modules.pop("sitecustomize", None)
    spec = importlib.util.find_spec("sitecustomize")
    if spec is None or spec.loader is None:
        if ours is not None:
            sys.modules["sitecustomize"] = ours  # the import that runs us expects to find it
        return
    importlib.import_module("sitecustomize")


if VARIABLE in os.environ and __name__ == "sitecustomize":
    _text = os.environ[VARIABLE]
    try:
        _message = _leave_no_trace(_text)
        atexit.register(_keep_error, _message["directory"])
        _awaited = ("torch", "jax", MARKS) if '"times_only": true' in _text else ("torch", "jax")
        sys.meta_path[:0] = [_WaitForFramework(_text, name) for name in _awaited]
    except Exception as error:
        print(f"perfscope: nothing is captured in this process: {type(error).__name__}: {error}", file=sys.stderr)
    _run_the_other()
