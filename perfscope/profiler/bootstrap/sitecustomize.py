"""Runs at the start of every Python process of the program, takes itself out again, and waits for torch and jax.

If only times are taken (A/B), a program with neither is useful, too: there it also waits for our own marks.

It runs in the program's interpreter before all other code, so it does almost nothing: no module of perfscope
is imported before the program imports torch or jax, and an error of perfscope never stops the program.
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
STARTED_AS = os.getpid()
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
    if message["child"]:
        # Its program may have set PYTHONPATH: our folder is the entry before the program's.
        message["pythonpath"] = os.environ.get("PYTHONPATH", "").partition(HERE)[2].removeprefix(os.pathsep) or None
    if message["pythonpath"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = message["pythonpath"]
    return message


# Processes that the program starts, as long as this process has no steps.


def _pass_on(text: str) -> None:
    """Have Python processes that this one starts run the bootstrap, too: `os` and what uses it, such as `subprocess`.

    Only the new process gets the variables, and takes them out again as this one did.
    """
    import _posixsubprocess
    import json

    passed = json.dumps({**json.loads(text), "child": True})

    def variables(path: str | None) -> dict[str, str]:
        return {VARIABLE: passed, "PYTHONPATH": os.pathsep.join(filter(None, (HERE, path)))}

    def fork_exec(words: Any, programs: Any, close: Any, keep: Any, folder: Any, env: Any, *rest: Any) -> Any:
        if VARIABLE not in os.environ and _may_capture(words):
            pairs = env if env is not None else [key + b"=" + value for key, value in os.environb.items()]
            before = dict(pair.partition(b"=")[::2] for pair in pairs)
            path = before.get(b"PYTHONPATH")
            added = variables(None if path is None else os.fsdecode(path))
            before.update({os.fsencode(key): os.fsencode(value) for key, value in added.items()})
            env = [key + b"=" + value for key, value in before.items()]
        return start(words, programs, close, keep, folder, env, *rest)

    def execve(path: Any, words: Any, env: Any) -> Any:
        if VARIABLE not in os.environ and _may_capture([path, *words[1:]]):
            env = {**env, **variables(env.get("PYTHONPATH"))}
        return replace(path, words, env)

    def execv(path: Any, words: Any) -> Any:
        return execve(path, words, os.environ)

    def posix_spawn(original: Any) -> Any:
        def spawn(path: Any, words: Any, env: Any, **options: Any) -> Any:
            if VARIABLE not in os.environ and _may_capture([path, *words[1:]]):
                env = dict(os.environ if env is None else env)
                env.update(variables(env.get("PYTHONPATH")))
            return original(path, words, env, **options)

        return spawn

    def system(command: Any) -> int:
        if VARIABLE not in os.environ and _may_capture(["sh", command]):
            added = variables(os.environ.get("PYTHONPATH")).items()
            exports = "".join(f"export {key}={_quoted(value)}; " for key, value in added)
            command = os.fsencode(exports) + os.fsencode(command)
        return run_shell(command)

    start, replace, run_shell = _posixsubprocess.fork_exec, os.execve, os.system
    modules: Any = (_posixsubprocess, os)
    modules[0].fork_exec = fork_exec
    modules[1].execve, modules[1].execv, modules[1].system = execve, execv, system
    for name in ("posix_spawn", "posix_spawnp"):
        if hasattr(os, name):
            setattr(os, name, posix_spawn(getattr(os, name)))
    started: Any = sys.modules.get("subprocess")
    if started is not None and hasattr(started, "_fork_exec"):
        started._fork_exec = fork_exec


def _may_capture(words: Any) -> bool:
    """Whether a command is a Python of which the bootstrap may be part, and this process has no steps."""
    session: Any = sys.modules.get("perfscope.profiler.session.session")
    if session is not None and session.has_steps():
        return False
    try:
        command = [os.fsdecode(word) for word in words]
    except TypeError:  # no command: the original raises the program's error
        return False
    if not command or not _starts_python(command):
        return False
    flags = command[1] if len(command) > 1 else ""
    isolated = flags.startswith("-") and not flags.startswith("--") and any(flag in flags[:4] for flag in "IES")
    return not isolated and not any("compile_worker" in word for word in command)


def _quoted(text: str) -> str:
    """A word of a shell (`shlex` would be imported)."""
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS = ("bash", "dash", "env", "sh", "zsh")
STARTERS = ("python", ".py", "torchrun", "accelerate", "deepspeed")
"""Words by which a line of a shell shows that it starts a Python program: other lines keep their environment."""


def _starts_python(command: Any) -> bool:
    """Whether a command is Python, names it, or is a Python script.

    Names: a line of a shell, or the argument of a program that starts it (``nice``, Ray's ``raylet``).
    """
    name = os.path.basename(command[0])  # noqa: PTH119
    if name in SHELLS:
        return any(word in part for part in command[1:] for word in STARTERS)
    if name.startswith("python") or any(_names_python(part) for part in command[1:]):
        return True
    for folder in ("",) if os.sep in command[0] else os.get_exec_path():
        try:
            with open(os.path.join(folder, command[0]), "rb") as file:  # noqa: PTH118, PTH123
                first = file.read(256).partition(b"\n")[0]
        except OSError:
            continue
        return first.startswith(b"#!") and b"python" in first
    return False


def _names_python(word: str) -> bool:
    """Whether an argument, or the value of an option, is a command of Python."""
    command = word.partition("=")[2] if word.startswith("-") else word
    return os.path.basename(command.partition(" ")[0]).startswith("python")  # noqa: PTH119


def _attach(text: str, framework: Any) -> None:
    """Load our package from the folder of this file and begin, because torch or jax was imported."""
    # A session imports the marks itself and listens to them, so the hook is no longer needed.
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not (isinstance(finder, _WaitForFramework) and finder.framework == MARKS)
    ]
    try:
        if "perfscope" not in sys.modules:
            _load_package()
        from dataclasses import replace

        from perfscope.model.capture import load_message
        from perfscope.profiler.session.session import attach

        message = load_message(text)
        forked = os.getpid() != STARTED_AS and not message.follow  # of a program that imports nothing itself
        if forked and message.options.alone:
            return
        attach(replace(message, child=message.child or forked), "none" if framework == MARKS else framework)
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
    except Exception:  # noqa: S110 (the program has failed and reports it itself)
        pass


class _WaitForFramework:
    """A finder that sees the import of one framework, delegates it, and attaches when the import is done.

    A program that only checks whether the framework is installed (``importlib.util.find_spec``) may import it later:
    every result is watched until it does.
    """

    def __init__(self, text: str, framework: Any) -> None:
        self._text = text
        self.framework = framework
        self._searching: set[int] = set()
        """Threads in which the other finders are being called."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        thread = get_ident()
        if name != self.framework or thread in self._searching:
            return None
        self._searching.add(thread)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.discard(thread)
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
        _times_only = _message["options"]["times_only"]
        _awaited = ("torch", "jax", MARKS) if _times_only else ("torch", "jax")
        _alone = _times_only or _message["options"]["alone"]
        if not (
            _message["follow"] or _message["worker_of"] or _message["companion"] or _message["recording"] or _alone
        ):
            _pass_on(_text)
        sys.meta_path[:0] = [_WaitForFramework(_text, name) for name in _awaited]
    except Exception as error:
        print(f"perfscope: nothing is captured in this process: {type(error).__name__}: {error}", file=sys.stderr)
    _run_the_other()
