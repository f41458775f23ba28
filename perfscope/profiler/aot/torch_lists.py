"""Optimizers and norms work on lists of tensors where the tensors are on a GPU; planned ones are fakes on the CPU."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _foreach_utils

_ASK = "_get_foreach_kernels_supported_devices"


def lists_as_on_a_gpu() -> None:
    """Have torch choose ``_foreach_*`` ops for fake CPU tensors by default, as it does for CUDA's, in this process.

    ``torch.optim`` and ``clip_grad_norm_`` take them where all tensors have a type and a device of two of its lists
    (``torch/optim/optimizer.py``: ``_default_to_fused_or_foreach``); whoever says ``foreach=False`` is still heard.
    """
    from torch.optim import optimizer, swa_utils

    for module in (optimizer, _foreach_utils):
        kinds = module._foreach_supported_types
        if FakeTensor not in kinds:
            kinds.append(FakeTensor)
    asked = _foreach_utils._get_foreach_kernels_supported_devices

    def also_here() -> list[str]:
        return [*asked(), "cpu"]

    for held in (optimizer, swa_utils, _foreach_utils):
        setattr(held, _ASK, also_here)
