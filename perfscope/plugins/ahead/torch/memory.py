"""Counts the device memory of a program that runs with fake tensors: each storage from its creation to its end.

A storage of a fake tensor has a size but no bytes. Torch keeps one Python object per storage for its lifetime, so a
weak reference to it dates its end. Memory allocated and freed inside an op, and workspaces of libraries, are not seen.
If the program moves tensors to ``cuda``, only tensors made or moved there count.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch

from perfscope.model.compile_log import ProgramLine
from perfscope.model.documents.torch_plan import MemoryOwner, PlanMemory, StepMemory, StepPhase
from perfscope.plugins.ahead.torch import compat
from perfscope.plugins.ahead.torch.compiler import ScheduledGraph
from perfscope.plugins.ahead.torch.peak import (
    NO_LINE,
    Block,
    Event,
    GraphBuffers,
    GraphCall,
    LedgerStep,
    UserLine,
    buffers_of,
    step_memory,
)
from perfscope.profiler.torch.op_graph.capture import insert_lowest
from perfscope.profiler.torch.op_graph.frames import Frames
from perfscope.profiler.torch.op_graph.recorder import dense_parts, tensors_in, unwraps
from perfscope.profiler.torch.op_graph.storages import storage_of


class OpWatch(compat.DispatchMode):  # type: ignore[misc]
    """Calls each watcher, in order, with each op of the program: ``watcher(func, args, kwargs, result)``."""

    supports_higher_order_operators = True

    def __init__(self, watchers: Sequence[Callable[[Any, Any, Any, Any], None]]) -> None:
        super().__init__()
        self._watchers = watchers
        self._paused = 0

    def install(self) -> None:
        """Watch from now on; enter the fake world first."""
        insert_lowest(self)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, dispatched ops do not belong to the program."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(map(unwraps, types)):
            return NotImplemented  # the subclass unwraps its tensors, and the ops on the parts are seen
        result = func(*args, **(kwargs or {}))
        if not self._paused:
            with compat.without_torch_functions():
                for watcher in self._watchers:
                    watcher(func, args, kwargs or {}, result)
        return result


class _Watch(ref[Any]):
    __slots__ = ("address", "block")

    address: int
    block: Block


class MemoryLedger:
    """All storages of a process from now on. ``start()`` and ``take()`` around a step give its events in order."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._watches: dict[int, _Watch] = {}
        self._events: list[Event] | None = None
        self._held: list[Block] = []
        self._parameters: dict[int, ref[Any]] = {}
        """By ``id``, because tensors compare by value."""
        self._lines: dict[int, UserLine] = {}
        self._upcoming: dict[int, int] = {}
        """By thread: autograd numbers nodes per thread, and runs those of a device in a separate thread."""
        self._phase: StepPhase = "other"
        self.ops = self.first = 0
        self.context: tuple[StepPhase, UserLine] = ("other", NO_LINE)
        """Phase and user's line of the last op."""
        self.for_device: Callable[[], bool] = lambda: False
        """Whether a tensor made now is for the device, whatever device it is requested on."""
        self.names_device = False
        """Whether the program ever named ``cuda``: then tensors made elsewhere belong to the host."""
        self.backward_began: list[int] = []
        """Numbers of the step's ops with which a backward pass began."""
        self.joins: list[tuple[Block, Block]] = []
        """(sum, first summand) of gradients that the engine would add up in place without watchers."""

    def install(self) -> None:
        """Also count storages that are emptied and refilled in place from now on, as `fully_shard` does."""
        kind: Any = torch.UntypedStorage
        original, ledger = kind.resize_, self

        def resize(storage: Any, size: Any) -> Any:
            result = original(storage, size)
            ledger.resized(storage)
            return result

        kind.resize_ = resize

    def start(self) -> None:
        """Begin a step."""
        self._held = [watch.block for watch in list(self._watches.values()) if watch() is not None]
        self._events, self.backward_began, self.joins = [], [], []
        self._lines.clear()
        self.first = self.ops

    def take(self, optimizers: Any) -> tuple[list[Block], list[Event]]:
        """End the step; return (blocks at its begin, events since)."""
        events, self._events = self._events or [], None
        self._name(optimizers)
        blocks, self._held = self._held, []
        return blocks, events

    def resized(self, storage: Any) -> None:
        """A storage has a new size: the old block is freed and a new one begins."""
        watch = self._watches.get(id(storage))
        size = int(storage.nbytes())
        if watch is None or watch() is not storage or watch.block.bytes == size:
            return
        old = watch.block
        old.died = self.ops
        phase, line = self.context
        new = Block(size, old.op, phase, line, self.ops, device=old.device, touched=self.ops, category=old.category)
        watch.block = new
        if self._events is not None:
            self._events += [("died", old), ("born", new)]

    def block_of(self, tensor: Any) -> Block | None:
        """The block of a tensor, if it was seen."""
        thing = storage_of(tensor)
        watch = None if thing is None else self._watches.get(id(thing))
        return watch.block if watch is not None and watch() is thing else None

    def moved(self, tensor: Any) -> None:
        """The program requested this tensor on the device; if it is part of a larger one, only its part is there."""
        self.names_device = True
        for part in dense_parts(tensor):
            block = self.block_of(part)
            if block is not None and not block.device:
                block.device, block.bytes = True, min(block.bytes, int(part.numel() * part.element_size()))

    def name(self, tensor: Any, category: MemoryOwner) -> None:
        """Set the category of a tensor of the device that the program does not state (``gradient``)."""
        self.moved(tensor)
        self._call(tensor, category)

    def seen(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Handle an op that ran."""
        sources, results = _dense_tensors_in((args, kwargs)), _dense_tensors_in(result)
        names_cuda = any(
            isinstance(value, torch.device) and value.type == "cuda" for value in (*args, *kwargs.values())
        )
        self.names_device = self.names_device or names_cuda
        known = [block for tensor in sources if (block := self.block_of(tensor)) is not None]
        for block in known:
            block.touched = self.ops
        self.meet(sources)
        on_device = (
            names_cuda or any(block.device for block in known) or (not known and bool(results) and self.for_device())
        )
        phase, line, node = self._context(sources)
        self.context = (phase, line)
        for tensor in results:
            block = self.block_of(tensor)
            if block is None:
                block = self._made(tensor, str(func), phase, line, node)
                if block is None:
                    continue
                block.device = on_device or tensor.device.type == "cuda"
                self.names_device = self.names_device or tensor.device.type == "cuda"  # a planned graph names no device
                if phase == "backward" and str(func) == "aten.add.Tensor" and known:
                    self._join(block, known[0])
        self.ops += 1

    def meet(self, tensors: Any) -> None:
        """Recognise parameters among tensors; sharded parameters are not seen as such."""
        for tensor in tensors_in(tensors):
            if isinstance(tensor, torch.nn.Parameter):
                self._parameters[id(tensor)] = ref(tensor)

    @contextmanager
    def graph(
        self, number: int | None, arguments: list[Any], makers: Sequence[Block | None]
    ) -> Iterator[Callable[[Any], None]]:
        """Wrap the run of a planned graph; its caller empties ``arguments``. Yields a function for the results.

        ``makers``: index of a result -> its buffer in the graph.
        """
        tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
        inputs = tuple(
            self.block_of(argument) if isinstance(argument, torch.Tensor) else None for argument in arguments
        )
        self.meet(tensors)
        phase, line, node = self._context(tensors)
        if phase == "other":  # called by the wrapper of a library, not in a module's forward
            phase = "forward"
        for block in inputs:
            if block is not None:
                block.touched = self.ops
        self.ops += 1
        first = None if self._events is None else len(self._events)
        outputs: list[Block | None] = []

        def taken(results: Any) -> None:
            for index, result in enumerate(results or ()):
                block = None
                for part in _dense_tensors_in(result) if isinstance(result, torch.Tensor) else ():
                    block = self.block_of(part)
                    if block is None:
                        block = self._made(part, "", phase, line, node)
                        maker = makers[index] if index < len(makers) else None
                        if block is not None:
                            block.device = True
                        if block is not None and maker is not None:
                            block.op, block.place = maker.op, maker.place
                outputs.append(block)
            self.ops += 1

        yield taken
        if first is None or self._events is None:
            return
        since = self._events[first:]
        gone = {id(block) for what, block in since if what == "died"}
        freed = frozenset(index for index, block in enumerate(inputs) if block is not None and id(block) in gone)
        call = GraphCall(
            number=-1 if number is None else number, inputs=inputs, given_up=freed, outputs=tuple(outputs), phase=phase
        )
        # Here results are made before inputs are freed; the graph's own events have the real order.
        self._events[first:] = [("graph", call), *sorted(since, key=lambda event: event[0] == "born")]

    def _made(self, tensor: Any, op: str, phase: StepPhase, line: UserLine, node: int) -> Block | None:
        thing = storage_of(tensor)
        if thing is None:
            return None
        block = Block(int(thing.nbytes()), op, phase, line, self.ops, None, node, touched=self.ops)
        watch = _Watch(thing, self._gone)
        watch.address, watch.block = id(thing), block
        self._watches[watch.address] = watch
        if self._events is not None:
            self._events.append(("born", block))
        return block

    def _gone(self, watch: Any) -> None:
        block: Block = watch.block
        block.died = self.ops
        address: int = watch.address
        if self._watches.get(address) is watch:
            del self._watches[address]
        if self._events is not None:
            self._events.append(("died", block))

    def _join(self, total: Block, first: Block) -> None:
        if first.bytes == total.bytes and first.phase == "backward" and first.node != total.node and first is not total:
            self.joins.append((total, first))

    def _context(self, sources: list[Any]) -> tuple[StepPhase, UserLine, int]:
        site = self._frames.site(sys._getframe(2))
        here: UserLine = (site.file, site.line, site.function)
        upcoming = compat.next_sequence()
        thread = threading.get_ident()
        created, self._upcoming[thread] = range(self._upcoming.get(thread, upcoming), upcoming), upcoming
        node = compat.backward_sequence()
        number = -1
        if compat.in_backward() or site.engine_before_user:
            phase: StepPhase = "backward"
            again = site.checkpoint and torch.is_grad_enabled()
            if node is not None and not again:
                number = node
                if site.file is None or site.engine_before_user:
                    here = self._lines.get(number, here)
        elif site.optimizer_before_user or (site.optimizer and not torch.is_grad_enabled()):
            phase = "optimizer"
        elif len(created) or any(tensor.requires_grad for tensor in sources):
            phase = "forward"
        else:
            in_module = bool(site.function and site.function.endswith(("forward", "__call__")))
            phase = "forward" if self._phase == "forward" and in_module else "other"
        for sequence in created:
            self._lines[sequence] = here
        if phase == "backward" and self._phase != "backward":
            self.backward_began.append(self.ops)
        if self._phase == "backward" and phase != "backward":
            self._grads()
        self._phase = phase
        return phase, here, number

    def _grads(self) -> None:
        """Mark the tensors in ``.grad`` as gradients, with their parameters."""
        for key, reference in list(self._parameters.items()):
            parameter = reference()
            if parameter is None:
                del self._parameters[key]
                continue
            self._call(parameter, "parameter")
            self._call(parameter.grad, "gradient")

    def _name(self, optimizers: Any) -> None:
        self._grads()
        for optimizer in list(optimizers):
            for group in optimizer.param_groups:
                self.meet(group["params"])
                for parameter in group["params"]:
                    self._call(parameter, "parameter")
                    self._call(parameter.grad, "gradient")
            for tensor in tensors_in(
                tuple(dict(state) for state in optimizer.state.values() if hasattr(state, "keys"))
            ):
                self._call(tensor, "optimizer_state")

    def _call(self, tensor: Any, category: MemoryOwner) -> None:
        for part in () if tensor is None else dense_parts(tensor):
            block = self.block_of(part)
            if block is not None and block.category is None:
                block.category = category


def _dense_tensors_in(tree: Any) -> list[Any]:
    """The dense tensors of arguments or results."""
    tensors = list(tensors_in(tree))
    if all(tensor.layout is torch.strided for tensor in tensors):
        return tensors
    return [part for tensor in tensors for part in dense_parts(tensor)]


# The memory of the eager and of the planned step of a program, from its first op on.


_log = logging.getLogger(__name__)


class StepPeaks:
    """Counts while the program runs. An error here costs only the peak, not the rest of the plan."""

    def __init__(self, frames: Frames, place_of: Callable[[Iterable[Any]], ProgramLine | None]) -> None:
        """``place_of(nodes)``: the user's line of FX graph nodes."""
        self.ledger = MemoryLedger(frames)
        self._place_of = place_of
        self._graphs: list[GraphBuffers | None] = []
        self._uncounted: dict[str, None] = {}
        self._eager: StepMemory | None = None
        self._planned: StepMemory | None = None

    def install(self) -> None:
        """Count from now on; enter the fake world first."""
        self.ledger.install()

    def planned(self, scheduled: ScheduledGraph) -> None:
        """Record a planned graph, in the order of their numbers."""
        direction = "backward" if scheduled.backward else "inference" if scheduled.inference else "forward"
        label = f"{scheduled.compile_id} {direction}"
        try:
            buffers = buffers_of(
                scheduled.graph,
                compat.memory_lines(scheduled.graph),
                label=label,
                size=compat.buffer_bytes,
                places=self._place,
            )
        except (ImportError, AttributeError, TypeError, KeyError, AssertionError) as error:
            _log.debug("buffers of %s", label, exc_info=True)
            self._uncounted[f"buffers of graph {label}: inductor's wrapper is not understood ({error})"[:300]] = None
            self._graphs.append(None)
            return
        if buffers.unread:
            self._uncounted[f"graph {label} has branches or loops: what they hold inside is not counted"] = None
        self._graphs.append(buffers)

    @contextmanager
    def graph(self, number: int | None, arguments: list[Any]) -> Iterator[Callable[[Any], None]]:
        """Wrap the run of a planned graph (`Planner`)."""
        buffers = None if number is None else self._graphs[number]
        with self.ledger.graph(number, arguments, () if buffers is None else buffers.results) as taken:
            yield taken

    def begin(self) -> None:
        """Begin a step."""
        self.ledger.start()

    def end(self, optimizers: Iterable[Any], *, eager: bool) -> None:
        """End a step. The last planned step counts, because graphs are still being made in the first."""
        ledger = self.ledger
        blocks, events = ledger.take(optimizers)
        step = LedgerStep(
            held=blocks, events=events, joins=ledger.joins, backward_began=ledger.backward_began, graphs=self._graphs,
            all_on_device=not ledger.names_device, first_op=ledger.first,
        )  # fmt: skip
        try:
            memory = step_memory(step)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            _log.debug("memory of a step", exc_info=True)
            self._uncounted[f"memory of a step could not be summed up: {type(error).__name__}: {error}"[:300]] = None
            return
        if eager:
            self._eager = memory
        else:
            self._planned = memory

    def found(self) -> PlanMemory:
        """Return the result."""
        return PlanMemory(eager=self._eager, planned=self._planned, uncounted=tuple(self._uncounted)[:1000])

    def _place(self, origins: Iterable[Any]) -> UserLine:
        line = self._place_of(origins)
        return NO_LINE if line is None else (line.file, line.line, line.function)
