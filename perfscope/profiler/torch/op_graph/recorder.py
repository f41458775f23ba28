"""The dispatch mode that records every op below autograd: one call of ``__torch_dispatch__``, one row.

It stores numbers and names, never a tensor, so that memory is freed exactly as without it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch._ops import HigherOrderOperator
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from perfscope.model.kernel_cost import Cost
from perfscope.model.op_flops import aten, flops_of
from perfscope.profiler.torch.op_graph.capture import OpTable
from perfscope.profiler.torch.op_graph.declared import Launches, declared_call, sum_of
from perfscope.profiler.torch.op_graph.frames import Frames, Site
from perfscope.profiler.torch.op_graph.host_reads import HOST_READS, host_read, reason_at
from perfscope.profiler.torch.op_graph.storages import StorageIds
from perfscope.profiler.torch.op_graph.token_ids import counted

# Which ``nn.Module`` an op belongs to: a stack per thread, kept by global forward hooks.


class ModuleStack:
    """Names modules ``Model.blocks.0.attention``: the class of the outermost one, then the attribute path.

    The same names as ``torch.utils.module_tracker``; two models of one program stay distinct by class.
    """

    def __init__(self) -> None:
        # By id() with a weak reference: a module may define __eq__ and so have no hash.
        self._names: dict[int, tuple[ReferenceType[Any], str]] = {}
        self._owners: dict[int, tuple[ReferenceType[Any], str]] = {}
        self._roots: list[ReferenceType[Any]] = []
        self._local = threading.local()
        self._handles: list[Any] = []

    def start(self) -> None:
        """Puts the hooks in. They run for every module of the process until ``stop()``."""
        # always_call: a forward that raises (early stop of checkpointing, a caught error) must leave too.
        self._handles = [
            register_module_forward_pre_hook(self.enter),
            register_module_forward_hook(self.leave, always_call=True),
        ]

    def stop(self) -> None:
        """Takes the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def innermost(self) -> str:
        """Name of the module whose forward runs on this thread, or ``''``."""
        stack = self._stack()
        return stack[-1][1] if stack else ""

    def parameters(self) -> list[Any]:
        """Parameters and buffers of every outermost module that ran. Do not keep them."""
        roots = [module for root in self._roots if (module := root()) is not None]
        return [tensor for root in roots for tensor in (*root.parameters(), *root.buffers())]

    def owner(self, parameter: Any) -> str:
        """Name of the module that holds this parameter, or ``''``."""
        return _look_up(self._owners, parameter) or ""

    def name(self, module: Any) -> str:
        """Name of a module that ran."""
        return _look_up(self._names, module) or type(module).__name__

    def enter(self, module: Any, inputs: Any = ()) -> None:
        """The forward of ``module`` begins."""
        name = _look_up(self._names, module) or self._adopt(module)
        self._stack().append((id(module), name))

    def leave(self, module: Any, inputs: Any = (), output: Any = None) -> None:
        """It ended."""
        stack = self._stack()
        if any(entered == id(module) for entered, _ in stack):
            while stack.pop()[0] != id(module):
                pass

    def _adopt(self, root: Any) -> str:
        prefix = type(root).__name__
        self._roots.append(ref(root))
        for path, module in root.named_modules():
            name = f"{prefix}.{path}" if path else prefix
            self._names[id(module)] = (ref(module), name)
            for parameter in module.parameters(recurse=False):
                self._owners[id(parameter)] = (ref(parameter), name)
        return prefix

    def _stack(self) -> list[tuple[int, str]]:
        stack: list[tuple[int, str]] | None = getattr(self._local, "stack", None)
        if stack is None:
            stack = self._local.stack = []
        return stack


def _look_up(names: dict[int, tuple[ReferenceType[Any], str]], thing: Any) -> str | None:
    entry = names.get(id(thing))
    return entry[1] if entry is not None and entry[0]() is thing else None


# Facts from an op's schema and tags, looked up once per overload: writes, views, pointwise, host reads.


POINTWISE_UNTAGGED = aten(
    # One output element per input element, at the same place; torch 2.13 tags neither these ...
    "copy copy_ _to_copy clone fill fill_ zero_ masked_fill_ native_dropout native_dropout_backward tril tril_ "
    "triu triu_ softplus_backward glu glu_backward bernoulli bernoulli_ uniform_ normal_ "
    # ... nor ops that make every element from nothing.
    "zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full scalar_tensor rand rand_like "
    "randn randn_like"
)
REDUCTION_UNTAGGED = aten(
    # They reduce rows and, most of them, write the rows again: a compiler fuses them as reductions.
    "_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data native_layer_norm "
    "native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward native_group_norm "
    "native_group_norm_backward native_batch_norm native_batch_norm_backward _native_batch_norm_legit "
    "nll_loss_forward logcumsumexp cumsum cumprod _foreach_norm _foreach_max"
)
REDUCTION_TAGGED = aten(
    "all amax amin aminmax any argmax argmin count_nonzero linalg__powsum linalg_vector_norm logsumexp max mean min "
    "nansum norm prod std std_mean sum var var_mean"
)
"""Names that newer torch tags as reductions: torch 2.6 has no such tag."""
_REDUCES = getattr(torch.Tag, "reduction", None)
ALLOCATIONS = aten("empty empty_like empty_strided new_empty new_empty_strided resize_ set_ _unsafe_view record_stream")
"""Move no bytes although their schema declares no alias."""
METADATA = aten(
    "sym_size sym_stride sym_numel sym_storage_offset size stride numel dim storage_offset is_contiguous "
    "is_strides_like_format is_non_overlapping_and_dense sym_is_contiguous is_pinned _nnz sparse_dim dense_dim "
    "_version is_coalesced resolve_conj resolve_neg is_same_size"
)

LIFTS = aten("lift lift_fresh lift_fresh_copy")
"""Given a tensor that was made just now: ``torch.tensor(3.0)``."""

MOST_BATCHES = 64
"""Embeddings of a step whose ids are counted."""


class OpFacts(NamedTuple):
    """Everything about an overload that does not depend on the call."""

    name: str
    packet: str
    arguments: tuple[str, ...]
    written: tuple[str, ...]
    pointwise: bool
    reduction: bool
    view: bool
    host_read: str | None


def facts_of(func: Any) -> OpFacts:
    """Facts of an ``OpOverload``, or of a higher-order operator, which has neither schema nor tags."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        name = func.name() if callable(getattr(func, "name", None)) else str(func)
        return OpFacts(name, name, (), (), False, False, False, None)
    name = str(func)
    packet = name.rpartition(".")[0]
    written = tuple(arg.name for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write)
    if name.startswith("c10d.") and not name.startswith("c10d.send"):  # their schemas lack their writes
        written = tuple(
            arg.name for arg in schema.arguments if "Tensor" in str(arg.type) and not arg.name.startswith("input")
        )
    reshapes = torch.Tag.inplace_view in func.tags  # t_(), squeeze_(): "writes" the shape, not the storage
    aliases = any(arg.alias_info is not None and not arg.alias_info.is_write for arg in schema.arguments)
    foreach = packet.startswith("aten._foreach_") and packet not in REDUCTION_UNTAGGED
    pointwise = torch.Tag.pointwise in func.tags or packet in POINTWISE_UNTAGGED or foreach
    tagged = packet in REDUCTION_TAGGED if _REDUCES is None else _REDUCES in func.tags
    reduction = tagged or packet in REDUCTION_UNTAGGED
    return OpFacts(
        name=name,
        packet=packet,
        arguments=tuple(arg.name for arg in schema.arguments),
        written=() if reshapes else written,
        pointwise=pointwise and not reduction,
        reduction=reduction,
        view=reshapes
        or (aliases and not written)
        or packet in ALLOCATIONS
        or packet in METADATA
        or packet.startswith("prim."),
        host_read=HOST_READS.get(packet),
    )


class RecordingMode(TorchDispatchMode):  # type: ignore[misc]
    """Records until it is taken off the stack. ``modules`` must be started and stopped together with it."""

    supports_higher_order_operators = True

    def __init__(self, table: OpTable, frames: Frames, modules: ModuleStack) -> None:
        super().__init__()
        self.storages = StorageIds(lambda: len(table))
        self.launches = Launches(self._record_launch)
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
        self._checkpoint_calls: dict[tuple[str | None, ...], tuple[str, int]] = {}
        """By module and function of forward ops inside a checkpoint, where it was called: recomputing has no such
        frame."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled regions stay compiled: only the ops they still dispatch are seen."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(unwraps, types)):
            return NotImplemented  # the subclass takes its tensors apart, and we see the ops on the parts
        with self.launches.of_op() as launched:
            result = func(*args, **kwargs)
        if self.active and not _is_bookkeeping(func):
            with self._lock, torch._C.DisableTorchFunction():
                try:
                    if self._table.has_room():
                        self._record(func, args, kwargs, result, launched)
                except Exception as error:  # the program must go on; save() reports why there is no graph
                    self.active = False
                    self.failure = f"{func} could not be recorded: {type(error).__name__}: {error}"
        return result

    def _record_launch(self, name: str, tensors: list[Any], cost: Cost | None) -> None:
        """Add a row for a kernel that was launched outside of any op."""
        if not self.active or not self._table.has_room():
            return
        with self._lock, torch._C.DisableTorchFunction():
            frame: Any = sys._getframe(2)
            while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("triton."):
                frame = frame.f_back
            try:
                site = self._frames.site(frame)
                phase, module, line, sequence = self._context(site, range(0), tensors)
                self._table.append(
                    name=name, phase=phase, inputs=[self._tensor(tensor) for tensor in tensors], outputs=[], mutated=[],
                    pointwise=False, reduction=False, view=False, flops=None, declared=cost, module=module, line=line,
                    sequence=sequence, recompute=_recomputes(site), checks=False, loop=site.loop, host_read=None,
                )  # fmt: skip
            except Exception as error:  # as for an op
                self.active = False
                self.failure = f"{name} could not be recorded: {type(error).__name__}: {error}"

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any, launched: list[Cost | None]) -> None:
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = facts_of(func)
        named = {**dict(zip(facts.arguments, args, strict=False)), **kwargs}
        sources, results = list(tensors_in((args, kwargs))), list(tensors_in(result))
        if sources and all(getattr(tensor, "constant", None) is not None for tensor in sources):
            return  # in a program without data: numbers of the host, which alone are known
        # Scalar tensors are created outside the dispatcher, then lifted.
        inputs = [self._tensor(tensor, made=facts.packet in LIFTS) for tensor in sources]
        outputs = [self._tensor(tensor, made=True) for tensor in results]
        written = [self._tensor(tensor) for name in facts.written for tensor in tensors_in(named.get(name))]
        view = self._shares_storage(inputs, outputs, written) or self._is_view(facts, inputs, outputs)
        frame = sys._getframe(2)
        site = self._frames.site(frame)
        why, where = host_read(facts, named.get, sources, results)
        if why is not None:
            why = reason_at(why, where, site, frame)
        index = len(self._table)
        # Saved-tensor hooks detach() between the node's creation and its op: the number is the op's.
        sequences = range(0) if view and not torch.is_grad_enabled() else self._new_sequences()
        if site.installed and site.file is not None:
            self._table.libraries.add(site.file)
        phase, module, line, sequence = self._context(site, sequences, sources)
        checkpoint, line = self._checkpoint(phase, module, line, site)
        for created in sequences:
            self._forward_ops[self._here(), created] = index
        looks_up = facts.packet == "aten.embedding" and len(self._table.batches) < MOST_BATCHES
        if looks_up and (batch := counted(index, named.get("indices"), named.get("padding_idx", -1))):
            self._table.batches.append(batch)
        self._table.append(
            name=facts.name,
            phase=phase,
            inputs=inputs,
            outputs=outputs,
            mutated=written,
            pointwise=facts.pointwise,
            reduction=facts.reduction,
            view=view,
            flops=0 if view else None if any(map(_is_sparse, sources)) else flops_of(facts.name, named.get, results),
            declared=None if view else declared_call(func, args, kwargs, result) or sum_of(launched),
            module=module,
            line=line,
            sequence=sequence,
            recompute=_recomputes(site),
            checkpoint=checkpoint,
            checks=site.checks,
            loop=site.loop,
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

    def _checkpoint(
        self, phase: str, module: str, line: tuple[str | None, int | None, str | None], site: Site
    ) -> tuple[tuple[str, int] | None, tuple[str | None, int | None, str | None]]:
        """The call of the checkpoint around an op, and the line of the op.

        An op of a library's module that runs again has only the user's frame of ``backward()``: its line is
        that of the call.
        """
        if phase == "forward" and site.checkpoint_call is not None:
            self._checkpoint_calls[module, line[0], line[2]] = site.checkpoint_call
            self._checkpoint_calls[module,] = site.checkpoint_call
            return site.checkpoint_call, line
        if not _recomputes(site):
            return None, line
        call = self._checkpoint_calls.get((module, line[0], line[2])) or self._checkpoint_calls.get((module,))
        if call is not None and site.engine_before_user:
            return call, (*call, None)
        return call, line

    def _backward_context(
        self, node: Any, site: Site, here: tuple[str | None, int | None, str | None]
    ) -> tuple[str, str, tuple[str | None, int | None, str | None], int | None]:
        """Module and line of the forward op that created the node; a custom backward keeps its own line."""
        sequence: int = node._sequence_nr()
        parameter = getattr(node, "variable", None)
        if parameter is not None:  # AccumulateGrad has no forward op and no sequence number
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
        shape = tuple(_dimension(size) for size in tensor.shape)
        strides = tuple(_dimension(stride) for stride in tensor.stride()) if strided else ()
        return self._table.tensor(
            storage=self.storages.of(tensor, made=made),
            shape=shape,
            place=(strides, _dimension(tensor.storage_offset()) if strided else None),
            dtype=str(tensor.dtype).removeprefix("torch."),
            device=tensor.device.type,
            size=_distinct_bytes(tensor, shape, strides),
        )

    def _shares_storage(self, inputs: list[int], outputs: list[int], written: list[int]) -> bool:
        """True if everything that comes out was there before, untouched: nothing was moved."""
        storage = self._table.storage
        return bool(outputs) and not written and {storage[out] for out in outputs} <= {storage[row] for row in inputs}

    def _is_view(self, facts: OpFacts, inputs: list[int], outputs: list[int]) -> bool:
        """False if an op that may return a view returned new memory: ``to`` and ``reshape`` under inference_mode."""
        made = {self._table.storage[out] for out in outputs} - {self._table.storage[row] for row in inputs}
        copies = made and inputs and facts.packet.startswith("aten.") and facts.packet not in ALLOCATIONS | LIFTS
        return facts.view and not copies

    def _new_sequences(self) -> range:
        """Autograd numbers that this thread assigned since its last op: those of this op's node."""
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


def dense_parts(tensor: Any) -> Iterator[Any]:
    """The dense tensors that hold a tensor's bytes: itself, or those that a wrapper subclass holds."""
    if unwraps(type(tensor)):
        names, _ = tensor.__tensor_flatten__()
        for part in (getattr(tensor, name) for name in names):  # a mesh may be among them
            if isinstance(part, torch.Tensor):
                yield from dense_parts(part)
    else:
        yield tensor


_SPARSE = frozenset({torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


def _is_sparse(tensor: Any) -> bool:
    """Whether formulas of FLOPs, which count all elements of a shape, are wrong for it."""
    return tensor.layout in _SPARSE


def _is_bookkeeping(func: Any) -> bool:
    """``record_function`` marks of the profiler: they are dispatched, yet no work."""
    return not isinstance(func, HigherOrderOperator) and func.namespace == "profiler"


def _recomputes(site: Site) -> bool:
    """Checkpointing runs the forward again inside the backward, and only that runs with gradients on."""
    return site.checkpoint and torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()


def _dimension(size: Any) -> int:
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
