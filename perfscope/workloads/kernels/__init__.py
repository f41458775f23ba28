"""Kernels of the workloads, each next to a plain version of equal numbers and gradients.

A module is an op of PyTorch (``torch.library.custom_op``) with its plain version, its gradient and its declared cost
(`perfscope.kernel_cost`); its Triton kernel is in ``triton/``. Tensors of a GPU go to Triton. Tensors of the CPU go to
Triton's interpreter if ``TRITON_INTERPRET=1`` is set, else to the plain version. `ssd` is a program: its recurrence in
chunks consists of PyTorch's own products.
"""
