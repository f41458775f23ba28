"""A Python process that has imported a framework and forks for each program that a test starts.

A child looks like a Python that was just started: modules that were imported ahead are out of ``sys.modules`` and come
back, without being executed again, when the program imports them. Import hooks see those imports. Nothing that is
imported ahead may start a thread or a device; `serve` refuses to start otherwise.

Started with ``python -c``, so that no module of the tests is loaded. Its code has the file name ``<warm>``, which tools
that read stacks do not take for a user's file.
"""

from __future__ import annotations

import _posixsubprocess
import atexit
import builtins
import gc
import importlib
import importlib.machinery
import importlib.util
import io
import os
import pickle
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

try:
    from greenlet import greenlet
except ImportError:
    greenlet = None

STAGES = {"torch": ("torch", "torch._dynamo"), "jax": ("jax",)}
"""Modules to import ahead by framework, in order. A module's own imports are printed with it."""
OURS = ("perfscope.commands", "perfscope.analyzers", "perfscope.dashboards.report", "perfscope.profiler.launch",
        "perfscope.profiler.session")  # fmt: skip
"""Packages of perfscope that are imported ahead with all their modules."""
FREE = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "JAX_PLATFORMS", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
        "XLA_FLAGS", "TF_CPP_MIN_LOG_LEVEL")  # fmt: skip
FIXED = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "OMP_", "MKL_", "KMP_", "OPENBLAS_", "TORCH", "PYTORCH", "JAX", "XLA",
         "TF_", "CUDA", "TRITON", "MALLOC_")  # fmt: skip
"""Beginnings of variables that are read while Python starts or a framework is imported, except those in ``FREE``."""


class Program(NamedTuple):
    """What to run: ``python WORDS`` in a folder, with an environment."""

    words: tuple[str, ...]
    folder: str
    environment: dict[bytes, bytes]
    umask: int = -1
    new_session: bool = False
    group: int = -1


def fixed(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables that a fork cannot change any more."""
    return {
        name: value
        for name, value in environment.items()
        if os.fsdecode(name).startswith(FIXED) and os.fsdecode(name) not in FREE
    }


def can_run(words: Sequence[str], folder: str) -> bool:
    """Whether ``python WORDS`` names a program and has no options of Python other than ``-u``."""
    if not os.path.isdir(folder):
        return False
    rest = words[1:] if words[:1] == ["-u"] else words
    if rest[:1] in (["-c"], ["-m"]):
        return len(rest) > 1
    return bool(rest) and not rest[0].startswith("-") and os.path.isfile(os.path.join(folder, rest[0]))


# Modules that were imported ahead.


class Ahead:
    """Modules that were imported ahead, in stages: a finder of `sys.meta_path` that gives them back."""

    def __init__(self) -> None:
        self.known = frozenset(sys.modules)
        self.modules: dict[str, types.ModuleType] = {}
        self.specs: dict[str, Any] = {}
        self.stage: dict[str, int] = {}
        self.groups: dict[str, tuple[str, ...]] = {}
        self.needs: defaultdict[str, set[str]] = defaultdict(set)
        """Modules that each module imports as it is executed, and names in them."""
        self.variables: dict[str, dict[bytes, bytes]] = {}
        """Variables of the environment that an import sets."""
        self.platforms: str | None = os.environ.get("JAX_PLATFORMS")

    def add(self, name: str) -> None:
        """Import a module; one that is not installed is left out."""
        before, variables = set(sys.modules), dict(os.environb)
        builtins.__import__ = self._import
        try:
            importlib.import_module(name)
        except ImportError:
            return
        finally:
            builtins.__import__ = REAL_IMPORT
        added = tuple(each for each in sys.modules if each not in before and _is_foreign(each))
        self.groups[name] = added
        self.variables[name] = {key: value for key, value in os.environb.items() if key not in variables}
        for each in added:
            self.modules[each] = sys.modules[each]
            self.specs[each] = getattr(sys.modules[each], "__spec__", None)
            self.stage[each] = len(self.groups)

    def _import(self, name: str, space: Any = None, local: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """Import as usual and note what the importing module needs."""
        module = REAL_IMPORT(name, space, local, fromlist, level)
        if space is not None:
            full = importlib.util.resolve_name("." * level + name, space.get("__package__") or "") if level else name
            self.needs[space.get("__name__", "")] |= {full, *(f"{full}.{each}" for each in fromlist or ())}
        return module

    def hide(self) -> None:
        """Take all modules that are not of the standard library out of `sys.modules`."""
        for name in [each for each in sys.modules if each not in self.known and _is_foreign(each)]:
            del sys.modules[name]
        for name, module in self.modules.items():
            parent, _, child = name.rpartition(".")
            if self.stage.get(parent, self.stage[name]) < self.stage[name]:
                held = vars(self.modules[parent])
                if held.get(child) is module:
                    del held[child]

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """The spec of a module that was imported ahead, unless the program finds another of that name."""
        top = name.partition(".")[0]
        if name not in self.modules or not (self._is_first(name) if top == name else self._is_ours(top)):
            return None
        held = self.specs[name]
        spec = importlib.machinery.ModuleSpec(name, _Loader(self), origin=getattr(held, "origin", None))
        if held is not None:
            spec.submodule_search_locations = held.submodule_search_locations
            spec.has_location = held.has_location
        return spec

    def _is_first(self, name: str) -> bool:
        """Whether `sys.path` leads to the module that was imported ahead."""
        file = self.modules[name].__file__
        for entry in sys.path:
            place = os.path.join(entry or os.getcwd(), name)
            if file is not None and file.startswith(place):
                return True
            if os.path.isdir(place) or os.path.isfile(f"{place}.py"):
                return False
        return True

    def _is_ours(self, top: str) -> bool:
        held, ours = sys.modules.get(top), self.modules.get(top)
        return held is not None and getattr(held, "__file__", "") == getattr(ours, "__file__", None)

    def bring_back(self, name: str) -> None:
        """Put a module into `sys.modules`, with the modules that its import would bring."""
        self.modules[name].__spec__ = self.specs[name]
        sys.modules[name] = self.modules[name]
        for each in self._brought_by(name) - {name}:
            module = sys.modules.setdefault(each, self.modules[each])
            parent, _, child = each.rpartition(".")
            if parent in sys.modules:
                vars(sys.modules[parent]).setdefault(child, module)
        for key, value in self.variables.get(name, {}).items():
            os.environb.setdefault(key, value)
        if name == "torch":
            self.modules[name].default_generator.seed()  # as each process has another
        if name == "jax" and os.environ.get("JAX_PLATFORMS") != self.platforms:
            self.modules[name].config.update("jax_platforms", os.environ.get("JAX_PLATFORMS"))

    def _brought_by(self, name: str) -> set[str]:
        """Modules in ``sys.modules`` after the import of one."""
        found, left = set(self.groups.get(name, ())), [name]
        while left:
            each = left.pop()
            for needed in self.needs[each]:
                parents = [needed[:end] for end, letter in enumerate(f"{needed}.") if letter == "."]
                new = {parent for parent in parents if parent in self.modules} - found
                found |= new
                left += new
        return found


class _Loader:
    def __init__(self, ahead: Ahead) -> None:
        self._ahead = ahead

    def create_module(self, spec: Any) -> types.ModuleType:
        return self._ahead.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        self._ahead.bring_back(module.__spec__.name if module.__spec__ else module.__name__)


def _is_foreign(name: str) -> bool:
    return name.partition(".")[0] not in sys.stdlib_module_names and name != "__main__"


REAL_IMPORT, REAL_FORK_EXEC = builtins.__import__, _posixsubprocess.fork_exec
AHEAD = Ahead()
BASE = [entry for entry in sys.path if entry]
"""`sys.path` of a Python without ``PYTHONPATH``: the server is started without it."""
START = fixed(os.environb)
KEPT: list[Any] = []
"""Streams of the parent: they must not be flushed here."""


# A child.


def enter(program: Program) -> NoReturn:
    """Become a Python that was started with ``program``, and end as it ends."""
    gc.freeze()
    gc.set_threshold(700, 10, 10)
    os.chdir(program.folder)
    if program.umask >= 0:
        os.umask(program.umask)
    _environment(program.environment)
    _signals()
    words = list(program.words)
    sys.orig_argv = [sys.executable, *words]
    _streams(unbuffered=words[:1] == ["-u"])
    if words[:1] == ["-u"]:
        del words[0]
    sys.meta_path[:] = [AHEAD, *(each for each in sys.meta_path if each is not AHEAD)]
    AHEAD.hide()
    importlib.invalidate_caches()
    tempfile.tempdir = None
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    paths = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = list(dict.fromkeys([*paths, *BASE]))
    sys.modules.pop("sitecustomize", None)
    _end(_run, words, main)


def _environment(environment: Mapping[bytes, bytes]) -> None:
    for name in set(os.environb) - set(environment):
        del os.environb[name]
    for name, value in environment.items():
        if os.environb.get(name) != value:
            os.environb[name] = value


def _signals() -> None:
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _streams(*, unbuffered: bool) -> None:
    KEPT.extend((sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        errors = "backslashreplace" if number == 2 else KEPT[number].errors
        raw: Any = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
        raw.name = f"<{name}>"
        buffer: Any = io.BufferedReader(raw) if number == 0 else raw if unbuffered else io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            buffer, KEPT[number].encoding, errors, line_buffering=KEPT[number].line_buffering or raw.isatty(),
            write_through=KEPT[number].write_through or unbuffered,
        )  # fmt: skip
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
        stream.mode = "r" if number == 0 else "w"


def _run(words: list[str], main: types.ModuleType) -> None:
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(words[1])
        return
    if words[0] == "-c":
        text, name, sys.argv = words[1].encode(), "<string>", ["-c", *words[2:]]
        sys.path.insert(0, "")
    else:
        with open(words[0], "rb") as file:
            text = file.read()
        name, sys.argv = os.path.abspath(words[0]), words
        sys.path.insert(0, os.path.dirname(os.path.realpath(name)))
        main.__file__ = name
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", name)
        main.__dict__["__cached__"] = None
    exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)


def _end(run: Callable[..., None], *arguments: Any) -> NoReturn:
    """Run and end the process as Python ends."""
    code, killed = 0, False
    try:
        run(*arguments)
    except SystemExit as error:
        code = _code_of(error)
    except BaseException as error:
        killed = isinstance(error, KeyboardInterrupt)
        code = 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == "<warm>":
            trace = trace.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    for last in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):
        try:
            last()
        except BaseException as error:
            if last is sys.stdout.flush:
                code = code or 120  # as Python reports that its output could not be written
            sys.excepthook(type(error), error, error.__traceback__)
    if killed:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code)


def _code_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


# Programs that a child starts, such as the one under `perfscope run`: each is a fork of the child.


def fork_exec(*arguments: Any) -> int:
    """`_posixsubprocess.fork_exec`: programs of this Python are forked where that makes no difference."""
    words, _, close, passed, folder, variables = arguments[:6]
    ends, own_pipe = arguments[6:12], arguments[13]
    new_session, group, gid, groups, uid, umask, prepare = arguments[15:22]
    command = [os.fsdecode(word) for word in words]
    environment = dict(os.environb) if variables is None else dict(each.split(b"=", 1) for each in variables)
    place = os.getcwd() if folder is None else os.fsdecode(folder)
    if (
        command[0] != sys.executable
        or passed not in ((), (own_pipe,))
        or any(each is not None for each in (gid, groups, uid))
        or not can_run(command[1:], place)
        or fixed(environment) != START
        or threads() != 1
        or greenlet is None
        or not have_streams()
    ):
        return REAL_FORK_EXEC(*arguments)
    program = Program(tuple(command[1:]), place, environment, umask, bool(new_session), group)
    number = os.fork()
    if number == 0:
        try:
            _descriptors(ends, close=close)
            group_of(program)
            if prepare is not None:
                prepare()
        except BaseException:
            os._exit(255)
        greenlet(enter).switch(program)  # a stack without the frames of the parent
    return number


def threads() -> int:
    """Threads of this process."""
    return len(os.listdir("/proc/self/task"))


def have_streams() -> bool:
    """Whether this process has standard input, output and error."""
    try:
        return all(os.fstat(number) for number in range(3))
    except OSError:
        return False


def _descriptors(ends: Sequence[int], *, close: bool) -> None:
    """Give the child its three streams, and close what ``exec`` would close."""
    mine = [each if each != -1 else number for number, each in enumerate((ends[0], ends[3], ends[5]))]
    copies = [os.dup(each) for each in mine]  # 3 or more, while the three are open
    for number, copy in enumerate(copies):
        os.dup2(copy, number)
    for each in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # that of the listing is closed
            if each > 2 and (close or not os.get_inheritable(each)):
                os.close(each)


def group_of(program: Program) -> None:
    """Begin the requested session or process group."""
    if program.new_session:
        os.setsid()
    if program.group >= 0:
        os.setpgid(0, program.group)


# The server.


def warm(framework: str) -> None:
    """Import ahead."""
    for name in STAGES[framework]:
        AHEAD.add(name)
    for package in OURS:
        AHEAD.add(package)
        for found in pkgutil.walk_packages(sys.modules[package].__path__, f"{package}."):
            AHEAD.add(found.name)
    if threads() != 1:
        raise RuntimeError("an import started a thread: a fork of this process would not be a whole one")
    vars(_posixsubprocess)["fork_exec"] = vars(subprocess)["_fork_exec"] = fork_exec
    gc.collect()
    gc.freeze()


def serve(link: socket.socket) -> None:
    """Fork for each program that arrives, and report its process number, and how it ended, on a separate pipe."""
    running: dict[int, tuple[int, int]] = {}
    while True:
        ready, _, _ = select.select([link, *running], [], [])
        for ended in set(ready) - {link}:
            number, answers = running.pop(ended)
            _tell(answers, os.waitpid(number, 0)[1])
            os.close(ended)
            os.close(answers)
        if link not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(link, 1 << 20, 4)
        if not message:
            os._exit(0)  # the tests are over
        *streams, answers = descriptors
        number = os.fork()
        if number == 0:
            link.close()
            for place, descriptor in enumerate(streams):
                os.dup2(descriptor, place)
            for descriptor in [*descriptors, *running, *(answers for _, answers in running.values())]:
                os.close(descriptor)
            program = Program(*pickle.loads(message))
            group_of(program)
            enter(program)
        for descriptor in streams:
            os.close(descriptor)
        _tell(answers, number)
        running[os.pidfd_open(number)] = number, answers


def _tell(answers: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the test has not waited
        os.write(answers, struct.pack("i", number))


if __name__ == "__main__":
    warm(sys.argv[1])
    serve(socket.socket(fileno=int(sys.argv[2])))
