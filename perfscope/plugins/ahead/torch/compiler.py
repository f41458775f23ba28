"""The compiler of a planned program: dynamo, which reports breaks and recompilations, and inductor, which plans graphs.

Inductor lowers, schedules and fuses a graph and writes its Triton source, and is stopped before anything is compiled.
Its Triton backend works on CPU tensors (``config.cpu_backend``), which needs the triton package but neither a driver
nor a compiler.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, field

from perfscope.model.compile_log import MAX_TEXT, ProgramLine, Recompile
from perfscope.model.documents.torch_plan import MAX_ROWS, PlanBreak
from perfscope.model.errors import DataError
from perfscope.plugins.ahead.torch import compat
from perfscope.plugins.ahead.torch.cuda import on_host
from perfscope.plugins.ahead.torch.fake_tensors import to_host
from perfscope.profiler.torch.compat import add_trace_handler, hook_scheduler, trace_formatter
from perfscope.profiler.torch.compat import compile_id as running_compile_id
from perfscope.profiler.torch.compile_log import MOST_PAIRS, Refusal
from perfscope.profiler.torch.op_graph.frames import Frames

UNSUPPORTED_BACKENDS = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning")
"""Settings that would run kernels to choose among them."""

_OUTERMOST = "torch/_dynamo/external_utils.py"
"""Frames around a module of torch that is called outermost."""

_FILE = re.compile(r'(File "|user code at |falling back to eager[^\n]*? at |line \d+ of )(/[^":\n]+|[A-Za-z]:[^":\n]+)')
_PATH = re.compile(r"(?<![\w/.+-])/(?:[\w.+-]+/)+[\w.+-]+\.py\b")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


def graph_to_host(module: Any) -> None:
    """A graph changed so that tensors it makes on ``cuda`` are made on the CPU."""
    if not isinstance(module, torch.fx.GraphModule):
        return
    for node in module.graph.nodes:
        node.args = tuple(map(on_host, to_host(node.args)))
        node.kwargs = {name: on_host(value) for name, value in to_host(node.kwargs).items()}
    module.recompile()


class ScheduledGraph(Struct, kw_only=True):
    """Inductor's decisions for one graph, valid only while it is examined."""

    scheduler: Any
    graph: Any
    """A ``GraphLowering``."""
    backward: bool
    inference: bool
    compile_id: str
    refusals: list[Refusal]
    overflow: int
    kernel_names: dict[str, str] = field(default_factory=dict)
    """Scheduler node -> name of its Triton kernel."""
    saved: int = 0
    """Bytes a forward keeps for its backward."""


class InductorPlanner:
    """Listener for inductor. ``planned(scheduled)`` gets each graph and returns its number."""

    def __init__(
        self,
        planned: Callable[[ScheduledGraph], int],
        *,
        called: Callable[[int], None],
        failed: Callable[[str], None],
        around: Callable[[], AbstractContextManager[None]],
        paused: Callable[[], AbstractContextManager[None]],
        held: Callable[[int | None, list[Any]], AbstractContextManager[Callable[[Any], None]]],
        properties: object,
    ) -> None:
        """Keep the callbacks.

        ``called(number)``: a planned graph runs; ``failed(reason)``: a graph could not be planned; ``around()`` is
        entered while inductor works, ``paused()`` while a graph runs in place of its kernels. ``held(number, inputs)``
        is entered around that run, which empties the inputs as the real one does; its value is called with the results.
        ``properties``: device properties for inductor, which splits reductions by the number of cores.
        """
        self._planned, self._called, self._failed, self._around, self._paused = planned, called, failed, around, paused
        self._held = held
        self._properties = properties
        self._refusals: dict[tuple[str, str, str], Refusal] = {}
        self._overflow = 0
        self._kernel_names: dict[str, str] = {}
        self._saved = 0
        self.tuned = False
        """Whether the program requested autotuning, which is not planned."""
        self.replayed = False
        """Whether it requested CUDA graphs."""

    def install(self) -> None:
        """Change inductor in this process; ``DataError`` with one line for an unsupported torch."""
        try:
            compat.configure_inductor()
            compat.treat_cpu_as_device(self._properties)
            hook_scheduler(self._refused, lambda _: None)
            compat.hook_inductor(self._look, self._defined, self._compile)
        except (ImportError, AttributeError, TypeError) as error:
            raise DataError(
                f"torch {torch.__version__}: inductor cannot plan here: a private part has changed "
                f"({type(error).__name__}: {error}); torch 2.13 with triton 3.7 is known to work"
            ) from error

    def backend(self, module: Any, inputs: Any) -> Any:
        """A backend of torch.compile that plans."""
        return compat.compile_fx(module, inputs)

    def _defined(self, name: str, nodes: Iterable[Any]) -> None:
        for node in nodes:
            for part in node.get_nodes() if hasattr(node, "get_nodes") else ():
                self._kernel_names[part.get_name()] = name

    def _compile(self, original: Any, model: Any, inputs: Any, patches: dict[str, Any]) -> Any:
        self.tuned |= any(patches.get(name) for name in UNSUPPORTED_BACKENDS)
        self.replayed |= any(value for name, value in patches.items() if name.endswith("cudagraphs"))
        left_out = [name for name in patches if name in UNSUPPORTED_BACKENDS or "cudagraph" in name]
        patches = {name: value for name, value in patches.items() if name not in left_out}
        graph_to_host(model)
        with self._around(), compat.without_modes(), compat.inductor_settings(patches):
            return original(model, inputs, inner_compile=self._plan)

    def _plan(self, module: Any, inputs: Sequence[Any], **named: Any) -> Any:
        before = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
        self._refusals, self._overflow, self._kernel_names, number = {}, 0, {}, None
        self._saved = _saved_bytes(before)
        try:
            compat.lower(module, inputs, named)
        except _PlannedError as planned:
            number = planned.number
        except Exception as error:  # the program continues with this graph unchanged
            what = str(error).strip().splitlines()
            self._failed(f"{type(error).__name__}: {what[0] if what else ''}")

        def run(arguments: list[Any]) -> Any:
            if number is not None:
                self._called(number)
            with self._paused(), self._held(number, arguments) as taken:
                with compat.below_autograd():
                    made = before.forward(*arguments)  # not as a module of the program, whose calls are compiled
                taken(made)
                arguments.clear()
            return made

        boxed: Any = run
        boxed._boxed_call = True  # AOTAutograd then frees it if it has no other use
        return boxed

    def _refused(self, first: Any, second: Any, reason: str, arguments: tuple[Any, ...]) -> None:
        key = (first.get_name(), second.get_name(), reason)
        refusal = self._refusals.get(key)
        if refusal is not None:
            refusal.times += 1
        elif len(self._refusals) < MOST_PAIRS:
            self._refusals[key] = Refusal(first, second, reason, arguments)
        else:
            self._overflow += 1

    def _look(self, graph: Any) -> Any:
        """Replaces ``GraphLowering.compile_to_module``: everything is decided, nothing is compiled."""
        code, _ = graph.codegen()
        compat.log_output_code(code)
        scheduled = ScheduledGraph(
            scheduler=graph.scheduler,
            graph=graph,
            backward=bool(graph.is_backward),
            inference=bool(graph.is_inference),
            compile_id=running_compile_id() or "-",
            refusals=list(self._refusals.values()),
            overflow=self._overflow,
            kernel_names=dict(self._kernel_names),
            saved=0 if graph.is_backward or graph.is_inference else self._saved,
        )
        raise _PlannedError(self._planned(scheduled))


class _PlannedError(BaseException):
    """Ends inductor's work after the plan was read. Not an ``Exception``, which inductor would wrap."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _saved_bytes(module: Any) -> int:
    """Bytes of a graph's hidden results without its own inputs: kept for the backward."""
    output = next(node for node in module.graph.nodes if node.op == "output")
    seen = set(output.meta.get("user_visible_output_idxs", ()))
    kept = {
        node
        for index, node in enumerate(output.args[0] if isinstance(output.args[0], (list, tuple)) else ())
        if index not in seen and isinstance(node, torch.fx.Node) and node.op != "placeholder"
    }
    values = [node.meta.get("val") for node in kept]
    return sum(
        value.nbytes
        for value in values
        if isinstance(value, torch.Tensor)
        and not any(isinstance(number, torch.SymInt) for number in (*value.shape, *value.stride()))
    )


# Dynamo's reports on frames: their origin, graph breaks, and reasons of recompilations.


_OWN_FOLDER = Path(__file__).parents[1]


def _listed(payload: Any) -> list[Any]:
    """Reasons of a recompilation: a JSON list, or plain text (one guard, torch since 2.11)."""
    try:
        reasons = json.loads(payload) if isinstance(payload, str) else payload
    except ValueError:
        reasons = payload
    return reasons if isinstance(reasons, list) else [reasons]


class DynamoLog(logging.Handler):
    """A handler of torch's structured trace that keeps breaks and recompilations only."""

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self._frames = frames
        self._interned: dict[int, str] = {}
        self.functions: dict[str, tuple[str, ProgramLine | None]] = {}
        """Compile id -> name of the frame's function, and its first line."""
        self._own: set[str] = set()
        """Compile ids of perfscope's frames, which precede functions of torch."""
        self._breaks: list[tuple[str, str]] = []
        self._recompiles: list[tuple[str, tuple[str, ...]]] = []

    def install(self) -> None:
        """Listen."""
        self.setFormatter(trace_formatter())
        add_trace_handler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Handle a record; never raises."""
        try:
            self._take(record.metadata, getattr(record, "payload", None))  # type: ignore[attr-defined]
        except Exception:
            logging.getLogger(__name__).debug("a record of torch's compiler was not understood", exc_info=True)

    def breaks(self) -> tuple[PlanBreak, ...]:
        """Graph breaks in the order they were found, duplicates removed."""
        rows = []
        for compile_id, text in dict.fromkeys(self._breaks):
            if compile_id in self._own:
                continue
            function, line = self.functions.get(compile_id, (None, None))
            rows.append(PlanBreak(compile_id=compile_id, function=function, place=line, text=text))
        return tuple(rows[:MAX_ROWS])

    def recompiles(self) -> tuple[Recompile, ...]:
        """Frames that were compiled again."""
        rows = []
        for compile_id, reasons in self._recompiles:
            if compile_id in self._own:
                continue
            function, line = self.functions.get(compile_id, (None, None))
            rows.append(Recompile(compile_id=compile_id, function=function, place=line, reasons=reasons))
        return tuple(rows[:MAX_ROWS])

    def _take(self, facts: dict[str, Any], payload: Any) -> None:
        if "str" in facts:
            text, number = facts["str"]
            self._interned[number] = text
            return
        compile_id = f"{facts.get('frame_id', '-')}/{facts.get('frame_compile_id', '-')}"
        if "dynamo_start" in facts:
            self._started(compile_id, facts["dynamo_start"].get("stack") or ())
            return
        name = (facts.get("artifact") or {}).get("name")
        if name == "dynamo_graph_break_reason":
            self._breaks.append((compile_id, self._shown(str(payload))))
        elif name == "recompile_reasons":
            reasons = _listed(payload)
            self._recompiles.append((compile_id, tuple(self._shown(str(reason)) for reason in reasons[:MAX_ROWS])))

    def _started(self, compile_id: str, stack: Any) -> None:
        if not stack:
            return
        frame = stack[-1]
        file = frame.get("filename")
        path = self._interned.get(file, "") if isinstance(file, int) else str(file)
        function = str(frame.get("name"))
        if Path(path).parent == _OWN_FOLDER:
            self._own.add(compile_id)
        if path.endswith(_OUTERMOST):
            self.functions[compile_id] = ("a module of torch.nn", None)
            return
        line = ProgramLine(file=self._frames.name(path), line=int(frame.get("line") or 0), function=function)
        self.functions[compile_id] = (function, line)

    def _shown(self, text: str) -> str:
        """The text without this machine's folders and without addresses, which differ between runs."""
        text = _FILE.sub(lambda match: match[1] + self._frames.name(match[2]), text)
        text = _PATH.sub(lambda match: self._frames.name(match[0]), text)
        return _ADDRESS.sub("0x", text)[:MAX_TEXT]
