"""Tensors with shapes but without memory, in which a whole training step can be run.

Tensors are torch's ``FakeTensor``; a tensor requested on ``cuda`` is made as a fake CPU tensor, because the autograd
engine of a torch without CUDA refuses tensors of an absent device. If the program reads a value that depends on data,
an answer is made up and counted. Integers that the program draws or counts on the host have their values: they select
rows of a dataset.
"""

from __future__ import annotations

import copy
import io
import os
import sys
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch

from perfscope.model.compile_log import ProgramLine
from perfscope.model.documents.torch_plan import PlaceholderValue
from perfscope.plugins.ahead.torch import compat
from perfscope.plugins.ahead.torch.compat import FakeTensor, FakeTensorMode
from perfscope.profiler.torch.op_graph.frames import Frames

CHOSEN_SHARE = 0.5
"""Assumed share of true elements in a mask of unknown values."""

ANSWERS: dict[str, tuple[str, Any]] = {
    "aten.equal.default": ("equal", True),
    "aten.allclose.default": ("equal", True),
    "aten.is_nonzero.default": ("bool", False),
}
"""Op that reads -> (name of the read, answer). Floats are 0.0, integers 1, booleans False."""

_MODULUS = {"aten.topk", "aten.sort", "aten.argmax", "aten.argmin", "aten.max", "aten.min"}
"""Ops whose integer results are positions in a dimension, assumed uniformly distributed."""
_KEEPS = {
    "aten.view", "aten.reshape", "aten._unsafe_view", "aten.clone", "aten._to_copy", "aten.alias", "aten.detach",
    "aten.expand", "aten.slice", "aten.select", "aten.permute", "aten.transpose", "aten.t", "aten.unsqueeze",
    "aten.squeeze",
}  # fmt: skip
"""Ops whose results are values of their first argument."""

_NUMBERS = {"aten.randint", "aten.randperm", "aten.arange"}
"""Ops that make integers without data."""
MOST_NUMBERS = 65_536
"""Most elements of a tensor with known values."""


RECURRENT = ("aten.mkldnn_rnn_layer", "aten.lstm.", "aten.gru.", "aten.rnn_", "aten._cudnn_rnn", "aten._thnn_fused_")
"""Ops of a whole recurrent layer, or of a cell."""


NESTED = (
    "nested tensors are not covered by a plan: the lengths of their rows depend on data (pad the "
    "batch, or plan one packed row)"
)
SPARSE = "sparse gradients are not covered by a plan: how many rows they hold follows from data; use sparse=False"


class PlanFrames(Frames):
    """Display names of files without this machine's folders: below the import path, else their last two parts."""

    def __init__(self, torch_file: str, working_folder: Path, script: Path | None = None) -> None:
        super().__init__(torch_file, working_folder)
        if script is not None:  # Python will put its folder on the path later
            self._roots = (self._roots[0], f"{script.resolve().parent}{os.sep}", *self._roots[1:])

    def name(self, path: str) -> str:
        """The file as the user would name it."""
        shown = super().name(path)
        if not Path(shown).is_absolute():
            return shown
        inside = Path(path)
        while (inside.parent / "__init__.py").is_file():
            inside = inside.parent
        parts = Path(path).parts
        return "/".join(parts[-2:]) if inside == Path(path) else Path(path).relative_to(inside.parent).as_posix()


class FakeWorld:
    """The dispatch mode of the program's tensors, and the values made up in it. Enter it around the whole program."""

    def __init__(self, script: Path | None = None) -> None:
        """``script``: the file that is run, if it is a file."""
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.mode.create_symbolic_nested_int = _refuse_nested
        self.frames = PlanFrames(torch.__file__, Path.cwd(), script)
        self.reads: Counter[tuple[str, str | None, int | None, str | None, str]] = Counter()
        self.recurrent = False
        """Whether a recurrent layer ran as one op."""
        self._swap = torch.utils.swap_tensors
        self._copy = torch.Tensor.__deepcopy__

    def install(self) -> None:
        """Change torch in this process permanently; it is the planner's own."""

        def on_host(original: Any, mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            there = compat.any_device(kwargs, "cuda")
            args, kwargs = to_host(args), to_host(kwargs)
            if mode is not self.mode:  # the compiler's own
                return original(mode, func, types, args, kwargs)
            result = self._answered(original, mode, func, types, args, kwargs)
            return result if there else _with_numbers(mode, func, args, kwargs, result)

        compat.hook_fake_dispatch(on_host)
        torch.utils.swap_tensors = self._swapped
        FakeTensor.numpy = lambda tensor, **_: self._numpy(tensor)
        save = torch.save
        torch.save = lambda thing, file, *_, **__: self._saved(save, thing, file)
        FakeTensor.__format__ = _formatted
        FakeTensor.__deepcopy__ = lambda tensor, memo: self._deep_copied(tensor, memo)

    def _saved(self, save: Callable[..., None], thing: Any, file: Any) -> None:
        """Replaces ``torch.save``, which would write a checkpoint without values, perhaps over a real one."""
        if isinstance(file, io.BytesIO):
            save(thing, file)
        else:
            self.note("torch.save", "nothing is written")

    def _swapped(self, left: Any, right: Any) -> None:
        """``module.to(...)`` swaps parameters, which torch refuses for fakes remembered by a converter."""
        if isinstance(left, FakeTensor):
            left.data = right.detach()
            left.fake_device = right.fake_device
        else:
            self._swap(left, right)

    def _deep_copied(self, tensor: Any, memo: dict[int, Any]) -> Any:
        """Replaces ``copy.deepcopy`` of a tensor: torch's own copies the mode, and fails for ``torch.tensor(0.0)``."""
        if tensor.fake_mode is not self.mode or not tensor.is_leaf:
            return self._copy(tensor, memo)
        if id(tensor) in memo:
            return memo[id(tensor)]
        made = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            made = torch.nn.Parameter(made)
        made.requires_grad_(tensor.requires_grad)
        memo[id(tensor)] = made
        if tensor.grad is not None:
            made.grad = copy.deepcopy(tensor.grad, memo)
        own = {name: value for name, value in vars(tensor).items() if name not in vars(made)}
        vars(made).update(copy.deepcopy(own, memo))
        return made

    def made_up(self) -> tuple[PlaceholderValue, ...]:
        """Reads with their answers, by line."""
        return tuple(
            PlaceholderValue(
                what=what,
                place=None if file is None else ProgramLine(file=file, line=line or 0, function=function),
                answer=answer,
                times=times,
            )
            for (what, file, line, function, answer), times in self.reads.items()
        )

    def _answered(self, dispatch: Callable[..., Any], mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        try:
            result = dispatch(mode, func, types, args, kwargs)
        except compat.DataDependentOutput:
            return self._value(func, args)
        except compat.DynamicOutputShape:
            return self._sized(mode, func, args, kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if str(func).startswith("aten._nested_") or any(
                isinstance(item, torch.Tensor) and item.is_nested for item in args
            ):
                raise RuntimeError(NESTED) from error
            raise
        if isinstance(result, torch.Tensor) and result.layout is torch.sparse_coo:
            raise RuntimeError(SPARSE)
        _remember_index_range(func, args, result)
        self.recurrent = self.recurrent or str(func).startswith(RECURRENT)
        return result

    def _value(self, func: Any, args: Any) -> Any:
        what, answer = ANSWERS.get(str(func), ("item", 0.0))
        if what == "item" and isinstance(args[0], torch.Tensor):
            kind = args[0].dtype
            if kind is torch.bool:
                answer = False
            elif not kind.is_floating_point:
                answer = 1
        self.note(what, repr(answer))
        return answer

    def _numpy(self, tensor: Any) -> Any:
        """An array of zeros, for transforms of a dataset and logging."""
        self.note("numpy", "zeros")
        with compat.without_modes():
            return torch.zeros(tuple(tensor.shape), dtype=tensor.dtype).numpy()

    def _sized(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Results whose size depends on data, with a made-up size."""
        name, first, dtype = str(func).rpartition(".")[0].removeprefix("aten."), args[0], torch.int64
        elements = first.numel()
        shape: tuple[int, ...]
        if name == "nonzero":
            count = _count(first)
            shape, answer = (count, first.dim()), f"{count:,} of {elements:,} elements"
        elif name == "masked_select":
            count = _count(args[1]) * max(1, elements // max(1, args[1].numel()))
            shape, dtype, answer = (count,), first.dtype, f"{count:,} of {elements:,} elements"
        elif name in ("_unique", "_unique2", "unique_consecutive"):
            name, shape, dtype, answer = "unique", (elements,), first.dtype, f"all {elements:,} elements differ"
        elif name == "repeat_interleave":
            shape, answer = (elements,), f"each of {elements:,} once"
        elif name == "bincount":
            named = dict(zip(("self", "weights", "minlength"), args, strict=False), **kwargs)
            count = max(1, int(named.get("minlength") or 0))
            shape, answer = (count,), f"{count:,} bins"
        else:
            raise RuntimeError(f"aten.{name} is not covered by a plan: the size of its result depends on data")
        self.note(name, answer)
        with mode:
            values = torch.empty(shape, dtype=dtype, device=first.device)
            if name != "unique":
                return values
            places = torch.empty_like(first, dtype=torch.int64), torch.empty_like(values, dtype=torch.int64)
            return (values, *places)[: len(func._schema.returns)]

    def note(self, what: str, answer: str) -> None:
        """Count a read with that answer, at the user's line."""
        site = self.frames.site(sys._getframe(1))
        if not site.data:
            self.reads[what, site.file, site.line, site.function, answer] += 1


def _refuse_nested(*_: Any, **__: Any) -> Any:
    raise RuntimeError(NESTED)


def to_host(tree: Any) -> Any:
    """Arguments with every CUDA device in them replaced by the CPU."""
    if not compat.any_device(tree, "cuda"):
        return tree
    return compat.map_devices(tree, lambda device: torch.device("cpu") if device.type == "cuda" else device)


def _formatted(tensor: Any, form: str) -> str:
    """Format like torch's own tensors: a number by its value."""
    return format(tensor.item(), form) if tensor.dim() == 0 else object.__format__(tensor, form)


def _with_numbers(mode: Any, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
    """The result of an op of `_NUMBERS` with its values; that of another op unchanged."""
    if str(func.overloadpacket) not in _NUMBERS or result.dtype is not torch.int64 or result.numel() > MOST_NUMBERS:
        return result
    with compat.without_modes():
        values = func(*args, **kwargs)
    return compat.fake_with_values(mode, values)


def _count(mask: Any) -> int:
    share = getattr(mask, "_perfscope_share", CHOSEN_SHARE)
    return max(1, round(share * prod(mask.shape))) if mask.numel() else 0


def _remember_index_range(func: Any, args: Any, result: Any) -> None:
    """Assume that 1 of E values matches, so that a later ``nonzero`` has a size."""
    packet = str(func).rpartition(".")[0]
    if packet in _MODULUS and args and isinstance(args[0], torch.Tensor):
        extent = _extent(packet, args)
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, FakeTensor) and part.dtype is torch.int64:
                part._perfscope_values = extent
    elif packet in _KEEPS and isinstance(result, FakeTensor):
        for name in ("_perfscope_values", "_perfscope_share"):
            if hasattr(args[0], name):
                setattr(result, name, getattr(args[0], name))
    elif packet in ("aten.eq", "aten.ne") and isinstance(result, FakeTensor):
        values = getattr(args[0], "_perfscope_values", None)
        if values and not isinstance(args[1], torch.Tensor):
            result._perfscope_share = 1 / values if packet == "aten.eq" else 1 - 1 / values


def _extent(packet: str, args: Any) -> int:
    numbers = [arg for arg in args[1:] if isinstance(arg, int) and not isinstance(arg, bool)]
    dim_argument = 1 if packet == "aten.topk" else 0
    dim = numbers[dim_argument] if len(numbers) > dim_argument else -1
    shape = args[0].shape
    return int(shape[dim]) if shape else 1
