"""What the arguments of a collective say: its kind, the bytes it moves, the ranks that take part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perfscope.profiler.aot.torch_processes_file import CollectiveKind
from perfscope.profiler.captures.op_graph_mode import tensors_in

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")

KINDS: dict[str, tuple[CollectiveKind, str]] = {
    "_allgather_base_": ("all-gather", "result"),
    "_reduce_scatter_base_": ("reduce-scatter", "given"),
    "all_gather_into_tensor": ("all-gather", "result"),
    "all_gather_into_tensor_coalesced": ("all-gather", "result"),
    "all_gather_into_tensor_out": ("all-gather", "result"),
    "all_reduce": ("all-reduce", "given"),
    "all_reduce_": ("all-reduce", "given"),
    "all_reduce_coalesced": ("all-reduce", "given"),
    "all_reduce_coalesced_": ("all-reduce", "given"),
    "all_to_all_single": ("all-to-all", "given"),
    "allgather_": ("all-gather", "result"),
    "allgather_coalesced_": ("all-gather", "result"),
    "allgather_into_tensor_coalesced_": ("all-gather", "result"),
    "allreduce_": ("all-reduce", "given"),
    "allreduce_coalesced_": ("all-reduce", "given"),
    "alltoall_": ("all-to-all", "given"),
    "alltoall_base_": ("all-to-all", "given"),
    "barrier": ("barrier", "nothing"),
    "broadcast": ("broadcast", "given"),
    "broadcast_": ("broadcast", "given"),
    "gather_": ("gather", "result"),
    "irecv": ("recv", "given"),
    "isend": ("send", "given"),
    "monitored_barrier_": ("barrier", "nothing"),
    "recv_": ("recv", "given"),
    "recv_any_source_": ("recv", "given"),
    "reduce_": ("reduce", "given"),
    "reduce_scatter_": ("reduce-scatter", "given"),
    "reduce_scatter_tensor": ("reduce-scatter", "given"),
    "reduce_scatter_tensor_coalesced": ("reduce-scatter", "given"),
    "reduce_scatter_tensor_coalesced_": ("reduce-scatter", "given"),
    "reduce_scatter_tensor_out": ("reduce-scatter", "given"),
    "scatter_": ("scatter", "given"),
    "send": ("send", "given"),
    "shard_dim_alltoall": ("all-to-all", "given"),
}
"""Op -> (kind, whose bytes are those of the whole array)."""

_RESULTS = ("output_tensors", "output_tensor", "outputs", "out", "output")
_GIVEN = ("input_tensors", "input_tensor", "inputs", "input", "tensors", "tensor", "self")


@dataclass(slots=True, kw_only=True)
class Exchange:
    """What the arguments of a collective say."""

    kind: CollectiveKind
    bytes: int
    dtype: str | None
    ranks: tuple[int, ...]
    pairs: tuple[int, int] | None


def exchange_of(func: Any, args: Any, kwargs: Any, result: Any) -> Exchange:
    """What a collective moves, and among whom. ``KeyError`` for an op that is none."""
    packet = func._schema.name.partition("::")[2]
    kind, whose = KINDS[packet]
    named = _named(func, args, kwargs)
    tensors: list[Any] = []
    if whose == "result":
        tensors = _first(named, _RESULTS) or list(tensors_in(result))
    elif whose == "given":
        tensors = _first(named, _GIVEN)
    ranks = _ranks(named)
    return Exchange(
        kind=kind,
        bytes=sum(int(one.numel()) * int(one.element_size()) for one in tensors),
        dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else None,
        ranks=ranks,
        pairs=_pair(kind, named, ranks),
    )


def written_by(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The tensors that a collective writes: what its future gives back."""
    return _first(_named(func, args, kwargs), (*_RESULTS, *_GIVEN))


def _named(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return dict(zip((one.name for one in func._schema.arguments), args, strict=False)) | dict(kwargs)


def _first(named: dict[str, Any], names: Sequence[str]) -> list[Any]:
    """The tensors of the first argument of these that there is."""
    return list(tensors_in([named[name] for name in names if name in named][:1]))


def _ranks(named: dict[str, Any]) -> tuple[int, ...]:
    """Global ranks of the group that an op is given, by object or by name."""
    from torch.distributed import distributed_c10d as c10d

    group = named.get("process_group")
    if group is not None and not isinstance(group, c10d.ProcessGroup):
        group = c10d.ProcessGroup.unbox(group)
    if group is None:
        group = c10d._resolve_process_group(named["group_name"])
    return tuple(int(rank) for rank in c10d.get_process_group_ranks(group))


def _pair(kind: CollectiveKind, named: dict[str, Any], ranks: tuple[int, ...]) -> tuple[int, int] | None:
    if kind not in ("send", "recv"):
        return None
    mine = ranks[0] if ranks else 0
    other = int(named.get("dst", named.get("src", 0)) or 0)
    other = ranks[other] if 0 <= other < len(ranks) else mine
    return (mine, other) if kind == "send" else (other, mine)
