"""Builds op graphs by hand: ops by name on named values, storages and byte counts derived."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from perfscope.model.op_graph import GraphOp, GraphTensor, OpGraph

ITEM_SIZE = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "bool": 1, "int64": 8}
POINTWISE = {
    "add", "add_", "mul", "mul_", "sub", "div", "silu", "gelu", "pow", "rsqrt", "neg", "sqrt", "lerp_", "addcmul_",
    "addcdiv_", "masked_fill", "where", "relu", "exp", "sigmoid", "tanh", "clone", "copy_", "_to_copy", "bernoulli_",
    "zeros",
}  # fmt: skip
REDUCTIONS = {"sum", "mean", "amax", "var", "_softmax", "_softmax_backward_data", "native_layer_norm"}


@dataclass
class GraphBuilder:
    """``x = g.input((4, 8))``; ``y = g.op("mul", [x, x])``; ``g.graph(live=[y])``. Values are tensor indices."""

    device: str = "cpu"
    tensors: list[GraphTensor] = field(default_factory=list)
    ops: list[GraphOp] = field(default_factory=list)
    parameters: set[int] = field(default_factory=set)
    storages: int = 0

    def input(self, shape: tuple[int, ...], dtype: str = "float32", *, parameter: bool = False,
              device: str | None = None) -> int:  # fmt: skip
        """A value that exists before the step."""
        value = self._tensor(self._storage(), shape, dtype, device)
        if parameter:
            self.parameters.add(self.tensors[value].storage)
        return value

    def op(self, name: str, inputs: list[int], shape: tuple[int, ...] | None = None, dtype: str | None = None,
           **more: Any) -> int:  # fmt: skip
        """An op with one fresh output; in place (on its first input) if the name ends with ``_``."""
        first = self.tensors[inputs[0]] if inputs else None
        mutated: tuple[int, ...] = ()
        if name.endswith("_"):
            out, mutated = inputs[0], (inputs[0],)
        else:
            widest = max((self.tensors[i].shape for i in inputs), key=math.prod, default=())
            assert first is not None or shape is not None
            out = self._tensor(
                self._storage(),
                widest if shape is None else shape,
                dtype or (first.dtype if first else "float32"),
                more.pop("device", first.device if first else None),
            )
        self._add(name, inputs, (out,), mutated, **more)
        return out

    def view(self, value: int, shape: tuple[int, ...], name: str = "view") -> int:
        """A view of a value; smaller shapes show a part of it."""
        seen = self.tensors[value]
        out = self._tensor(seen.storage, shape, seen.dtype, seen.device)
        self._add(name, [value], (out,), (), view=True)
        return out

    def graph(self, live: list[int] | None = None) -> OpGraph:
        """The graph; ``live``: values that outlive the step."""
        kept = frozenset(self.tensors[value].storage for value in live or [])
        return OpGraph(step=0, device=self.device, ops=tuple(self.ops), tensors=tuple(self.tensors),
                       live_out=kept | frozenset(self.parameters), parameters=frozenset(self.parameters))  # fmt: skip

    def _storage(self) -> int:
        self.storages += 1
        return self.storages

    def _tensor(self, storage: int, shape: tuple[int, ...], dtype: str, device: str | None) -> int:
        size = math.prod(shape) * ITEM_SIZE[dtype]
        self.tensors.append(GraphTensor(storage=storage, shape=shape, dtype=dtype, device=device or self.device,
                                        bytes=size))  # fmt: skip
        return len(self.tensors) - 1

    def _add(self, name: str, inputs: list[int], outputs: tuple[int, ...], mutated: tuple[int, ...], *,
             view: bool = False, phase: str = "forward", flops: int | None = None, module: str = "",
             file: str | None = "model.py", line: int | None = 1, function: str | None = "forward",
             sequence: int | None = None, host_read: str | None = None, recompute: bool = False,
             checks: bool = False, loop_file: str | None = None, loop_line: int | None = None,
             declared_bytes: int | None = None, declared_dtype: str | None = None) -> None:  # fmt: skip
        self.ops.append(
            GraphOp(
                index=len(self.ops),
                name=name if "." in name else f"aten.{name}.default",
                phase=phase,  # type: ignore[arg-type]
                inputs=tuple(inputs),
                outputs=outputs,
                mutated=mutated,
                pointwise=name in POINTWISE,
                reduction=name in REDUCTIONS,
                view=view,
                flops=flops,
                module=module,
                file=file,
                line=line,
                function=function,
                sequence=sequence,
                host_read=host_read,
                recompute=recompute,
                checks=checks,
                loop_file=loop_file,
                loop_line=loop_line,
                declared_bytes=declared_bytes,
                declared_dtype=declared_dtype,
            )
        )
