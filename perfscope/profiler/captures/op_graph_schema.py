"""What an op's schema and tags say, looked up once per overload: writes, views, pointwise, host reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from perfscope.profiler.captures.op_graph_flops import aten

POINTWISE_UNTAGGED = aten(
    # One output element per input element, at the same place; torch 2.13 tags neither these ...
    "copy copy_ _to_copy clone fill fill_ zero_ masked_fill_ native_dropout native_dropout_backward tril tril_ "
    "triu triu_ softplus_backward glu glu_backward bernoulli bernoulli_ uniform_ normal_ "
    # ... nor those that make every element from nothing.
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
ALLOCATIONS = aten("empty empty_like empty_strided new_empty new_empty_strided resize_ set_ _unsafe_view record_stream")
"""Move no bytes although their schema declares no alias."""
METADATA = aten(
    "sym_size sym_stride sym_numel sym_storage_offset size stride numel dim storage_offset is_contiguous "
    "is_strides_like_format is_non_overlapping_and_dense sym_is_contiguous is_pinned _nnz sparse_dim dense_dim "
    "_version is_coalesced resolve_conj resolve_neg is_same_size"
)

LIFTS = aten("lift lift_fresh lift_fresh_copy")
"""Given a tensor that was made just now: ``torch.tensor(3.0)``."""

HOST_READS = {
    "aten._local_scalar_dense": "item",
    "aten.nonzero": "nonzero",
    "aten.masked_select": "masked_select",
    "aten._unique": "unique",
    "aten._unique2": "unique",
    "aten.unique_dim": "unique",
    "aten.unique_consecutive": "unique",
    "aten.unique_dim_consecutive": "unique",
    "aten.equal": "equal",
    "aten.is_nonzero": "bool",
    "aten.bincount": "bincount",
    "aten._linalg_check_errors": "linalg_check_errors",
}
"""Ops whose result's value or size the host needs before it can go on."""
MASK_READS = frozenset(("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"))
"""Ops that count the True elements of a boolean index (``nonzero`` inside)."""
CPU_CHECKS = frozenset(("one_hot",))
"""Functions that read values only to check them, and only on the CPU: ``Onehot.cpp`` leaves it to CUDA's asserts."""


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
    if name.startswith("c10d.") and not name.startswith("c10d.send"):  # their schemas do not say what they write
        written = tuple(
            arg.name for arg in schema.arguments if "Tensor" in str(arg.type) and not arg.name.startswith("input")
        )
    reshapes = torch.Tag.inplace_view in func.tags  # t_(), squeeze_(): "writes" the shape, not the storage
    written = () if reshapes else written
    aliases = any(arg.alias_info is not None and not arg.alias_info.is_write for arg in schema.arguments)
    foreach = packet.startswith("aten._foreach_") and packet not in REDUCTION_UNTAGGED
    pointwise = torch.Tag.pointwise in func.tags or packet in POINTWISE_UNTAGGED or foreach
    reduction = torch.Tag.reduction in func.tags or packet in REDUCTION_UNTAGGED
    return OpFacts(
        name=name,
        packet=packet,
        arguments=tuple(arg.name for arg in schema.arguments),
        written=written,
        pointwise=pointwise and not reduction,
        reduction=reduction,
        view=reshapes
        or (aliases and not written)
        or packet in ALLOCATIONS
        or packet in METADATA
        or packet.startswith("prim."),
        host_read=HOST_READS.get(packet),
    )


def host_read(facts: OpFacts, argument: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[str | None, str]:
    """(why the host would wait for this call or None, type of the device that holds the value)."""
    device = inputs[0].device.type if inputs else "cpu"
    if facts.host_read is not None:
        return facts.host_read, device
    if facts.packet in MASK_READS:
        masks = [index for index in argument("indices") or () if index is not None and index.dtype in _MASKS]
        return ("boolean index" if masks else None), (masks[0].device.type if masks else device)
    if facts.name == "aten.repeat_interleave.Tensor" and argument("output_size") is None:
        return "repeat_interleave", device
    if facts.packet == "aten._to_copy":
        # A non-blocking copy to the host lands in pinned memory; the wait, if any, is the program's own.
        away = device != "cpu" and outputs[0].device.type == "cpu"
        return ("to_host" if away and not argument("non_blocking") else None), device
    if facts.packet == "aten.copy_" and inputs[0].device.type == "cpu" and len(inputs) > 1:
        source = inputs[1].device.type
        return ("to_host" if source != "cpu" and not argument("non_blocking") else None), source
    return None, device


_MASKS = (torch.bool, torch.uint8)
