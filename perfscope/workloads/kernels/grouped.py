"""Products of groups of rows with one matrix each, in one launch: the experts of a mixture.

Shapes: R rows sorted by group, E groups, D and G features. ends_E: one past each group's last row, int32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import perfscope
from perfscope.workloads.kernels.launch import in_triton


def run(x_RD: Tensor, weight_EDG: Tensor, ends_E: Tensor) -> Tensor:
    """y_RG: each row times the matrix of its group."""
    x_RD, y_RG = x_RD.contiguous(), x_RD.new_empty(x_RD.shape[0], weight_EDG.shape[2])
    if in_triton(x_RD):
        from perfscope.workloads.kernels.triton import grouped

        grouped.product(x_RD, weight_EDG, ends_E, y_RG)
        return y_RG
    for group, rows in _groups(ends_E):
        y_RG[rows] = x_RD[rows] @ weight_EDG[group]
    return y_RG


def run_gradient(x_RD: Tensor, dy_RG: Tensor, ends_E: Tensor) -> Tensor:
    """dweight_EDG."""
    x_RD, dy_RG = x_RD.contiguous(), dy_RG.contiguous()
    dweight_EDG = x_RD.new_empty(len(ends_E), x_RD.shape[1], dy_RG.shape[1])
    if in_triton(x_RD):
        from perfscope.workloads.kernels.triton import grouped

        grouped.gradient(x_RD, dy_RG, ends_E, dweight_EDG)
        return dweight_EDG
    for group, rows in _groups(ends_E):
        dweight_EDG[group] = x_RD[rows].T @ dy_RG[rows]
    return dweight_EDG


def _groups(ends_E: Tensor) -> Iterator[tuple[int, slice]]:
    begin = 0
    for group, end in enumerate(ends_E.tolist()):
        yield group, slice(begin, end)
        begin = end


grouped_product = torch.library.custom_op("perfscope_workloads::grouped_product", run, mutates_args=())
grouped_gradient = torch.library.custom_op("perfscope_workloads::grouped_gradient", run_gradient, mutates_args=())
grouped_product.register_fake(lambda x_RD, weight_EDG, ends_E: x_RD.new_empty(x_RD.shape[0], weight_EDG.shape[2]))
grouped_gradient.register_fake(
    lambda x_RD, dy_RG, ends_E: x_RD.new_empty(ends_E.shape[0], x_RD.shape[1], dy_RG.shape[1])
)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy_RG: Tensor) -> tuple[Tensor, Tensor, None]:
    x_RD, weight_EDG, ends_E = ctx.saved_tensors
    dx_RD = grouped_product(dy_RG, weight_EDG.transpose(1, 2), ends_E)
    return dx_RD, grouped_gradient(x_RD, dy_RG, ends_E), None


grouped_product.register_autograd(_backward, setup_context=_keep)


@perfscope.kernel_cost(grouped_product)
def _product_cost(x_RD: Any, weight_EDG: Any, ends_E: Any) -> perfscope.Cost:
    (rows, depth), (_, _, columns) = x_RD.shape, weight_EDG.shape
    return perfscope.Cost(2 * rows * depth * columns, weight_EDG.nbytes + x_RD.nbytes + x_RD.nbytes // depth * columns)


@perfscope.kernel_cost(grouped_gradient)
def _gradient_cost(x_RD: Any, dy_RG: Any, ends_E: Any) -> perfscope.Cost:
    (rows, depth), columns = x_RD.shape, dy_RG.shape[1]
    weights = ends_E.shape[0] * columns * (x_RD.nbytes // rows)
    return perfscope.Cost(2 * rows * depth * columns, x_RD.nbytes + dy_RG.nbytes + weights)
