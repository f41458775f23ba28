"""Runs a model forward and backward three times: ``python -m perfscope.plugins.precision.drive file.py:function``.

The function is that of `perfscope parity`: it returns the model and its inputs. The process runs under
``perfscope run --numerics``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import perfscope
from perfscope.plugins.parity import cotangents, load_function

STEPS = 3
"""Steps: delayed scales need two."""


def main(source: str) -> None:
    """Run the model of ``source``; errors of the user's function end the process in one line."""
    make = load_function(source)
    made = make()
    torch = sys.modules.get("torch")
    run = _torch(*made) if torch is not None and isinstance(made[0], torch.nn.Module) else _jax(make)
    for _ in range(STEPS):
        run()
        perfscope.step()


def _torch(module: Any, inputs: Any) -> Callable[[], None]:
    import torch

    from perfscope.profiler.torch.module_calls import torch_tensors

    named = inputs if isinstance(inputs, dict) else {}
    given = () if named else tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)

    def run() -> None:
        wanted = [one for one in torch_tensors(module(*given, **named)) if one.requires_grad]
        signs = cotangents(tuple(one.shape) for one in wanted)
        torch.autograd.backward(wanted, [torch.from_numpy(sign).to(one) for sign, one in zip(signs, wanted)])  # noqa: B905
        module.zero_grad()

    return run


def _jax(make: Callable[[], Any]) -> Callable[[], None]:
    import jax
    import jax.numpy as jnp

    from perfscope.plugins.parity import JaxSide

    function, parameters, inputs = JaxSide(make, None).parts()

    def loss(parameters: Any, *inputs: Any) -> Any:
        outputs = [
            one for one in jax.tree.leaves(function(parameters, *inputs)) if jnp.issubdtype(one.dtype, jnp.floating)
        ]
        signs = cotangents(one.shape for one in outputs)
        return sum(((one * jnp.asarray(sign, one.dtype)).sum() for one, sign in zip(outputs, signs)), jnp.zeros(()))  # noqa: B905

    step = jax.jit(jax.value_and_grad(loss, allow_int=True))

    def run() -> None:
        jax.block_until_ready(step(parameters, *inputs))

    return run


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())[:400]}")
