"""State of one compilation while the log is read."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.readers.torch_log.records import MAX_ITEMS
from perfscope.model.compile_log import CodeLine, Compile, Direction, GraphNode, KernelBackend

_AOT_ID = re.compile(r"# AOT ID: \['[^']*?_(forward|backward|inference)'\]")
_DEFINED = re.compile(r"([A-Za-z_]\w{0,511}) = async_compile\.(\w{1,40})\((?:\s*'([\w.]{1,511})')?")
_RUN = re.compile(r"\s+(?:\w+ = )?([A-Za-z_]\w{0,511})\.run\(")
_CALLED = re.compile(r"\s+(?:\w+ = )?([A-Za-z_]\w{0,511})\(")
_EXTERN = re.compile(r"\s+(?:\w+ = )?(extern_kernels\.\w{1,200})\(")
_FALLBACK = re.compile(r"\s+(?:\w+ = )?(torch\.ops\.[\w.]{1,300}|aten\.[\w.]{1,300})\(")
_HANDLE = re.compile(r"\s*# \[Provenance debug handles\] (\S{1,600})$")
_SOURCES = re.compile(r"\s*# (?:Topologically Sorted )?Source Nodes: \[.*?\], Original ATen: \[(.*?)\]")
_MAPPED = re.compile(r"#   \S.{0,4096}? => (.+)$")
_FRAGMENT = re.compile(r"#   %(\w{1,511}) .{0,4096}?call_function\[target=(?:torch\.ops\.)?([\w.]{1,300})\]")
_BACKENDS: dict[str, KernelBackend] = {"triton": "triton", "cpp": "cpp", "cpp_pybinding": "cpp"}
_GENERIC = "triton_"
"""Name of a kernel in its own source, unless ``triton.unique_kernel_names`` is on."""
MAX_CALLS = 200_000

_DIRECTIONS: dict[str, Direction] = {"forward": "forward", "backward": "backward", "inference": "inference"}


# Inductor's output code: the kernels and library calls in its ``call``, and their nodes.
#
# Only names are read: from definitions (``x = async_compile.triton('x', ...``), from calls, and from inductor's
# comments. The code is never run.


class Defined(Struct):
    """A kernel of the code."""

    name: str
    backend: KernelBackend
    nodes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()


class Call(Struct):
    """A call of a kernel or library in ``call``."""

    name: str
    """Name of the variable or function, which provenance uses too."""
    backend: KernelBackend
    handle: str | None = None
    """``extern_kernels.mm:4``, if inductor numbers its calls."""
    ops: tuple[str, ...] = ()


class Code(Struct):
    """Definitions and calls of one output code, in order."""

    direction: Direction | None = None
    defined: dict[str, Defined] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    is_python: bool = True
    """``False`` for inductor's C++ wrapper, whose calls are not read."""


class _Comments(Struct):
    """Comments in front of a definition or a call."""

    ops: tuple[str, ...] = ()
    nodes: dict[str, str | None] = field(default_factory=dict)
    handles: list[str] = field(default_factory=list)


def parse(text: str) -> Code:
    """Return definitions and calls of ``text``."""
    named = _AOT_ID.search(text[:4096])
    code = Code(direction=_DIRECTIONS[named[1]] if named else None, is_python="def call(" in text)
    comments = _Comments()
    quoted = False
    for line in text.split("\n"):
        if quoted:  # The source of a kernel.
            quoted = line.count("'''") % 2 == 0
            continue
        stripped = line.lstrip()
        if stripped.startswith("#"):
            _comment(line, stripped, comments)
            continue
        if line[:1].isspace():
            if len(code.calls) < MAX_CALLS and _call(line, code, comments):
                comments = _Comments()
        elif stripped:
            _define(line, code, comments)
            comments = _Comments()
        quoted = line.count("'''") % 2 == 1
    return code


def _comment(line: str, stripped: str, comments: _Comments) -> None:
    handle = _HANDLE.match(line)
    sources = None if handle else _SOURCES.match(line)
    if handle is not None:
        comments.handles.append(handle[1])
    elif sources is not None:
        comments.ops = tuple(dict.fromkeys(op.strip() for op in sources[1].split(",") if op.strip()))[:MAX_ITEMS]
    elif (fragment := _FRAGMENT.match(stripped)) is not None:
        comments.nodes[fragment[1]] = fragment[2]
    elif (mapped := _MAPPED.match(stripped)) is not None:
        for name in mapped[1].split(","):
            comments.nodes.setdefault(name.strip(), None)


def _define(line: str, code: Code, comments: _Comments) -> None:
    match = _DEFINED.match(line)
    if match is None:
        return
    backend = _BACKENDS.get(match[2], "other")
    name = match[1]
    if backend == "triton" and match[3] and match[3] != _GENERIC:
        name = match[3]
    ops = tuple(dict.fromkeys(op for op in comments.nodes.values() if op)) or comments.ops
    code.defined[match[1]] = Defined(name, backend, tuple(comments.nodes), ops)


def _call(line: str, code: Code, comments: _Comments) -> bool:
    """Record the call in ``line``; return ``False`` without one."""
    run = _RUN.match(line) or _CALLED.match(line)
    if run is not None and run[1] in code.defined:
        call = Call(run[1], code.defined[run[1]].backend)
    elif (extern := _EXTERN.match(line) or _FALLBACK.match(line)) is not None:
        call = Call(extern[1], "extern", ops=comments.ops)
    else:
        return False
    # If inductor put the comments of several calls together, the handle with the call's name is its own.
    own = next((handle for handle in comments.handles if handle.rpartition(":")[0] == call.name), None)
    call.handle = own or (comments.handles[0] if len(comments.handles) == 1 else None)
    code.calls.append(call)
    return True


class GraphText(Struct):
    """A parsed graph: its nodes, its inputs, the names that it returns."""

    nodes: tuple[GraphNode, ...] = ()
    inputs: tuple[GraphNode, ...] = ()
    outputs: tuple[str, ...] = ()


class Section(Struct):
    """One graph on its way through inductor: its records are consecutive."""

    direction: Direction | None = None
    graph: GraphText | None = None
    final: bool = False
    """Whether ``graph`` is the last one before code is made, not an earlier stage."""
    code: Code | None = None
    nodes_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Kernel to nodes, from inductor's provenance."""
    places_of: dict[str, tuple[CodeLine, ...]] = field(default_factory=dict)
    compile_us: dict[str, float] = field(default_factory=dict)


class Unit(Struct):
    """State of one compilation of one frame."""

    compilation: Compile
    """As far as the log has been read; ``complete`` once its metrics were written."""
    started: bool = False
    fail_text: str | None = None
    """Complete text of the failure, for the hints in it."""
    fail_place: CodeLine | None = None
    aot: dict[Direction, GraphText] = field(default_factory=dict)
    """AOT autograd's graphs, before inductor's passes."""
    sections: list[Section] = field(default_factory=list)
    breaks: int = 0

    def update(self, **values: Any) -> None:
        """Set fields of the compilation."""
        self.compilation = replace(self.compilation, **values)

    @property
    def section(self) -> Section | None:
        """Return the latest graph that inductor works on."""
        return self.sections[-1] if self.sections else None

    def direction_of(self, section: Section | None) -> Direction:
        """Return the pass of a graph; without a record, what AOT autograd made of the frame."""
        if section is not None and section.direction is not None:
            return section.direction
        return "forward" if "forward" in self.aot else "inference"


def unread(compile_id: str) -> Unit:
    """Return a compilation of which nothing has been read."""
    return Unit(Compile(compile_id=compile_id, function=None, place=None, complete=False))
