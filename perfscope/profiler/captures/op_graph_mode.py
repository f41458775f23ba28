"""The dispatch mode that records every op below autograd: one call of ``__torch_dispatch__``, one row.

It stores numbers and names, never a tensor, so that memory is freed exactly as without it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from perfscope.profiler.captures.op_graph_flops import flops_of
from perfscope.profiler.captures.op_graph_frames import Frames, Site, asks_truth, called, reads_step_counter
from perfscope.profiler.captures.op_graph_modules import ModuleStack
from perfscope.profiler.captures.op_graph_schema import CPU_CHECKS, LIFTS, OpFacts, facts_of, host_read
from perfscope.profiler.captures.op_graph_storages import StorageIds
from perfscope.profiler.captures.op_graph_table import OpTable


class RecordingMode(TorchDispatchMode):  # type: ignore[misc]
    """Records until it is taken off the stack. ``modules`` must be started and stopped beside it."""

    supports_higher_order_operators = True

    def __init__(self, table: OpTable, frames: Frames, modules: ModuleStack) -> None:
        super().__init__()
        self.storages = StorageIds(lambda: len(table))
        self.active = True
        self.failure: str | None = None
        self._table = table
        self._frames = frames
        self._modules = modules
        self._facts: dict[Any, OpFacts] = {}
        self._thread = threading.get_ident()
        # Reentrant: a finalizer that runs inside the lock may itself dispatch an op.
        self._lock = threading.RLock()
        self._next_sequence = {self._thread: torch._C._autograd._get_sequence_nr()}
        self._forward_ops: dict[tuple[int, int], int] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled: only the ops they still dispatch are seen."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(unwraps, types)):
            return NotImplemented  # the subclass takes its tensors apart, and we see the ops on the parts
        result = func(*args, **kwargs)
        if self.active and not _is_bookkeeping(func):
            with self._lock, torch._C.DisableTorchFunction():
                try:
                    if self._table.has_room():
                        self._record(func, args, kwargs, result)
                except Exception as error:  # the program must go on; save() says why there is no graph
                    self.active = False
                    self.failure = f"{func} could not be recorded: {type(error).__name__}: {error}"
        return result

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = facts_of(func)
        named = {**dict(zip(facts.arguments, args, strict=False)), **kwargs}
        sources, results = list(tensors_in((args, kwargs))), list(tensors_in(result))
        # A tensor of a Python number comes into being in sight of nobody, and is then lifted.
        inputs = [self._tensor(tensor, made=facts.packet in LIFTS) for tensor in sources]
        outputs = [self._tensor(tensor, made=True) for tensor in results]
        written = [self._tensor(tensor) for name in facts.written for tensor in tensors_in(named.get(name))]
        view = facts.view or self._shares_storage(inputs, outputs, written)
        frame = sys._getframe(2)
        site = self._frames.site(frame)
        why, where = host_read(facts, named.get, sources, results)
        if why is not None:
            why = _stall(why, where, site, frame)
        index = len(self._table)
        # Saved-tensor hooks detach() between the node's creation and its op: the number is the op's.
        sequences = range(0) if view and not torch.is_grad_enabled() else self._new_sequences()
        phase, module, line, sequence = self._context(site, sequences, sources)
        for created in sequences:
            self._forward_ops[self._here(), created] = index
        self._table.append(
            name=facts.name,
            phase=phase,
            inputs=inputs,
            outputs=outputs,
            mutated=written,
            pointwise=facts.pointwise,
            reduction=facts.reduction,
            view=view,
            flops=0 if view else flops_of(facts.name, named.get, results),
            module=module,
            line=line,
            sequence=sequence,
            recompute=_recomputes(site),
            host_read=None if why is None else (why, where),
        )

    def _context(
        self, site: Site, sequences: range, sources: list[Any]
    ) -> tuple[str, str, tuple[str | None, int | None, str | None], int | None]:
        """(phase, module, (file, line, function), sequence) of the op that is being recorded."""
        here = (site.file, site.line, site.function)
        node = torch._C._current_autograd_node()
        if node is not None or torch._C._current_graph_task_id() != -1:
            if node is None or _recomputes(site):
                return "backward", self._modules.innermost(), here, sequences[-1] if sequences else None
            return self._backward_context(node, site, here)
        sequence = sequences[-1] if sequences else None
        module = self._modules.innermost()
        if site.engine_before_user:  # the gradient that backward() starts from
            return "backward", module, here, sequence
        if site.optimizer_before_user or (site.optimizer and not torch.is_grad_enabled()):
            return "optimizer", module, here, sequence
        if module or sequence is not None or any(tensor.requires_grad for tensor in sources):
            return "forward", module, here, sequence
        return "other", module, here, sequence

    def _backward_context(
        self, node: Any, site: Site, here: tuple[str | None, int | None, str | None]
    ) -> tuple[str, str, tuple[str | None, int | None, str | None], int | None]:
        """Module and line of the forward op that created the node; a custom backward keeps its own line."""
        sequence: int = node._sequence_nr()
        parameter = getattr(node, "variable", None)
        if parameter is not None:  # AccumulateGrad has no forward op and no number of its own
            self._table.add_parameter(self.storages.of(parameter))
            return "backward", self._modules.owner(parameter), here, None
        threads = (self._here(), self._thread) if site.checkpoint else (self._thread, self._here())
        forward = next(
            (op for thread in threads if (op := self._forward_ops.get((thread, sequence))) is not None), None
        )
        if forward is None:
            return "backward", "", here, sequence
        module, line = self._table.context(forward)
        if site.file is not None and not site.engine_before_user:
            line = here
        return "backward", module, line, sequence

    def _tensor(self, tensor: Any, *, made: bool = False) -> int:
        if isinstance(tensor, torch.nn.Parameter):
            self._table.add_parameter(self.storages.of(tensor))
        strided = tensor.layout is torch.strided
        shape = tuple(_size(size) for size in tensor.shape)
        strides = tuple(_size(stride) for stride in tensor.stride()) if strided else ()
        return self._table.tensor(
            storage=self.storages.of(tensor, made=made),
            shape=shape,
            place=(strides, _size(tensor.storage_offset()) if strided else None),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=tensor.device.type,
            size=_distinct_bytes(tensor, shape, strides),
        )

    def _shares_storage(self, inputs: list[int], outputs: list[int], written: list[int]) -> bool:
        """True if everything that comes out was there before, untouched: nothing was moved."""
        storage = self._table.storage
        return bool(outputs) and not written and {storage[out] for out in outputs} <= {storage[row] for row in inputs}

    def _new_sequences(self) -> range:
        """Autograd numbers that this thread gave out since its last op: those of this op's node."""
        thread, upcoming = self._here(), torch._C._autograd._get_sequence_nr()
        known = self._next_sequence.get(thread, upcoming)
        self._next_sequence[thread] = upcoming
        return range(known, upcoming)

    def _here(self) -> int:
        return threading.get_ident()


def tensors_in(tree: Any) -> Iterator[Any]:
    """Tensors among arguments or results, in order; of lists, tuples and dictionaries within as well."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for part in tree:
            yield from tensors_in(part)
    elif isinstance(tree, dict):
        yield from tensors_in(tuple(tree.values()))


def unwraps(kind: type) -> bool:
    """Whether tensors of a class only hold others, which it takes out at each op."""
    return hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")


def _is_bookkeeping(func: Any) -> bool:
    """``record_function`` marks of the profiler: they are dispatched, yet no work."""
    return not isinstance(func, HigherOrderOperator) and func.namespace == "profiler"


def _recomputes(site: Site) -> bool:
    """Checkpointing runs the forward again inside the backward, and only that runs with gradients on."""
    return site.checkpoint and torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()


def _stall(why: str, where: str, site: Site, frame: Any) -> str | None:
    """The reason to report, or None where the value lives on the host on every machine."""
    while frame is not None and frame.f_code.co_filename.replace("\\", "/").endswith(_DISPATCH_WRAPPERS):
        frame = frame.f_back  # torch wraps __torch_dispatch__ so that it is never compiled
    if site.data or reads_step_counter(frame):
        return None
    if why != "item" or frame is None:
        return why
    if where == "cpu" and called(frame) in CPU_CHECKS:
        return None
    return "bool" if asks_truth(frame) else why


_DISPATCH_WRAPPERS = ("torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/utils/_python_dispatch.py")


def _size(size: Any) -> int:
    """A dimension as a number; a symbolic one by the example it was traced with."""
    return size if type(size) is int else int(getattr(getattr(size, "node", None), "hint", None) or size)


def _distinct_bytes(tensor: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Bytes of all elements, expanded dimensions once; of a sparse tensor its indices and values."""
    size: int = tensor.element_size() if tensor.layout is not torch.strided else tensor.itemsize
    if tensor.layout is torch.sparse_coo:
        dense = shape[tensor.sparse_dim() :]
        per_value = size
        for extent in dense:
            per_value *= extent
        return int(tensor._nnz()) * (per_value + 8 * int(tensor.sparse_dim()))
    for axis, extent in enumerate(shape):
        size *= 1 if strides and strides[axis] == 0 and extent > 1 else extent
    return size
