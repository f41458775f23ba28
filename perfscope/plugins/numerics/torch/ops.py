"""Watches the ops of a step: the first that makes a non-finite value, and those that lose precision in 16 bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from perfscope.plugins.numerics.document import Loss, PrecisionLoss
from perfscope.plugins.numerics.torch.products import ProductWatch
from perfscope.plugins.numerics.torch.statistics import HALF, extremes, plain
from perfscope.profiler.torch.op_graph.frames import Frames
from perfscope.profiler.torch.op_graph.recorder import ModuleStack, OpFacts, facts_of
from perfscope.profiler.torch.op_graph.storages import StorageIds

PLACING = frozenset(
    ["masked_fill", "masked_fill_", "where", "fill", "fill_", "full", "full_like", "new_full", "scalar_tensor"]
)
"""Ops that put a given value into a tensor, such as the -inf of a mask."""
NOT_WATCHED = ("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach")
"""Ops of optimizers, whose results are the parameters."""
MOST_OPS = 20_000
"""Most ops of a step."""
MOST_AGAIN = 1 << 24
"""Most elements of a reduction that is computed again in float64."""
_DIFFERENCES = frozenset({"sub", "sub_", "add", "add_", "rsub"})


@dataclass(slots=True)
class OpResult:
    """A tensor made by an op, or present before: its smallest and largest value, still on the device."""

    numbers: torch.Tensor
    op: str = ""
    """Empty if no op of the step computed it."""
    line: str = ""
    module: str = ""
    inputs: tuple[int, ...] = ()
    """Results that it was computed from."""


class OpWatch(TorchDispatchMode):  # type: ignore[misc] # torch is not followed
    """Active while it is on the stack of modes. ``examined``: known lines."""

    supports_higher_order_operators = True

    def __init__(
        self,
        frames: Frames,
        modules: ModuleStack,
        paused: Callable[[], bool],
        examined: set[tuple[str, str, str]],
        products: ProductWatch | None = None,
    ) -> None:
        super().__init__()
        self.products = products
        self.results: list[OpResult] = []
        self.losses: list[tuple[PrecisionLoss, torch.Tensor]] = []
        """Without its error, and the error, still on the device."""
        self.failure: str | None = None
        self._frames, self._modules, self._paused, self._examined = frames, modules, paused, examined
        self._facts: dict[Any, OpFacts] = {}
        self._storages = StorageIds(lambda: 0)
        self._latest: dict[int, int] = {}
        """Storage -> its latest result."""
        self._reduced: dict[int, int] = {}
        """16-bit storage -> length of the reductions that its values consist of."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts = self._facts.get(func)
        if facts is None:
            facts = self._facts[func] = facts_of(func)
        name = facts.packet.removeprefix("aten.")
        if facts.view or self._paused() or len(self.results) >= MOST_OPS or name.startswith(NOT_WATCHED):
            return func(*args, **kwargs)
        inputs: list[torch.Tensor] = []
        known: tuple[int, ...] = ()
        try:
            inputs = list(_tensors((args, kwargs)))
            known = tuple(self._state(tensor) for tensor in inputs)
        except Exception as error:
            self._failed(error)
        result = func(*args, **kwargs)
        try:
            self._record(name, facts, (func, args, kwargs), inputs, known, result)
        except Exception as error:
            self._failed(error)
        return result

    def _failed(self, error: Exception) -> None:
        self.failure = self.failure or f"ops: {type(error).__name__}: {str(error).partition(chr(10))[0]}"

    def _state(self, tensor: torch.Tensor) -> int:
        """Number of the latest result in the tensor's storage; added if no op was seen to make it."""
        storage = self._storages.of(tensor)
        if storage not in self._latest:
            self._latest[storage] = len(self.results)
            self.results.append(OpResult(extremes(tensor)))
        return self._latest[storage]

    def _record(
        self,
        name: str,
        facts: OpFacts,
        call: tuple[Any, Any, Any],
        inputs: list[torch.Tensor],
        known: tuple[int, ...],
        result: Any,
    ) -> None:
        outputs = list(_tensors(result))
        if not outputs:
            return
        site = self._frames.site(sys._getframe(2))
        line = f"{site.file}:{site.line}" if site.file else ""
        module = self._modules.innermost()
        if inputs and outputs[0].dtype in HALF and all(tensor.dtype == outputs[0].dtype for tensor in inputs):
            self._half(name, facts, call, inputs, outputs[0], (name, line, module))
        if self.products is not None:
            self.products.add(name, call[1], line, module)
        for output in outputs:
            self._latest[self._storages.of(output)] = len(self.results)
            made_by = "" if name in PLACING else name
            self.results.append(OpResult(extremes(output), made_by, line, module, known))

    def _half(
        self,
        name: str,
        facts: OpFacts,
        call: tuple[Any, Any, Any],
        inputs: list[torch.Tensor],
        output: torch.Tensor,
        key: tuple[str, str, str],
    ) -> None:
        """An op from 16 bits to 16 bits. Results of only short reductions are recognised."""
        reduced = [self._reduced.get(self._storages.of(tensor), 0) for tensor in inputs]
        storage = self._storages.of(output)
        self._reduced.pop(storage, None)
        terms = max(1, inputs[0].numel() // output.numel())
        dtype = str(output.dtype).removeprefix("torch.")
        if facts.reduction:
            if terms > 1:
                self._reduced[storage] = terms
            axis = terms if terms > 1 else inputs[0].shape[-1] if inputs[0].dim() else 1
            if key not in self._examined and inputs[0].numel() <= MOST_AGAIN:
                self._examined.add(key)
                func, args, kwargs = call
                exact = next(_tensors(func(*_wide(args), **_wide(kwargs))))
                error = (output.double() - exact).norm() / exact.norm()
                self._lost("rounding", key, dtype, axis, error)
        elif facts.pointwise and all(reduced):
            self._reduced[storage] = max(reduced)
            if name in _DIFFERENCES and len(inputs) > 1:
                largest = torch.stack([tensor.double().norm() for tensor in inputs]).max()
                lost = largest / output.double().norm() * torch.finfo(output.dtype).eps / 2
                self._lost("cancellation", key, dtype, max(reduced), lost)

    def _lost(self, how: Loss, key: tuple[str, str, str], dtype: str, terms: int, error: torch.Tensor) -> None:
        op, line, module = key
        loss = PrecisionLoss(how=how, step=0, op=op, line=line, module=module, dtype=dtype, terms=terms, error=0.0)
        self.losses.append((loss, error))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    tensor = plain(value)
    if tensor is not None:
        yield tensor
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def _wide(value: Any) -> Any:
    """The same arguments in float64."""
    if isinstance(value, torch.Tensor):
        return value.detach().double() if value.is_floating_point() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value in HALF else value
    if isinstance(value, list | tuple):
        return type(value)(_wide(part) for part in value)
    return {key: _wide(part) for key, part in value.items()} if isinstance(value, dict) else value


def made_nonfinite(
    results: list[OpResult], numbers: list[list[float]], first: int, end: int, *, before: bool
) -> int | None:
    """Index of the first of ``results[first:end]`` that is worse than its inputs; else of the last one ``before``."""
    ranks = [_rank(values) for values in numbers]
    made = [
        index
        for index, result in enumerate(results[:end])
        if result.op and ranks[index] > max((ranks[source] for source in result.inputs), default=0)
    ]
    within = [index for index in made if index >= first]
    if within:
        return within[0]
    return made[-1] if made and before else None


def _rank(values: list[float]) -> int:
    """0: finite, 1: infinite, 2: NaN."""
    low, high = values
    return 2 if low != low or high != high else 1 if low == -float("inf") or high == float("inf") else 0
