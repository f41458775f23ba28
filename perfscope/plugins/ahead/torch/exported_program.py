"""A ``torch.export`` program as a program to plan: calls of it with its example inputs.

Run as ``python -m perfscope.plugins.ahead.torch.exported_program FILE``, only in the child, whose tensors have no
data: weights and inputs in the file give shapes and dtypes.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

CALLS = 4
"""The planner ignores the first ones."""


def main(path: str) -> None:
    """Call the exported module; ``SystemExit`` with one line if its file has no inputs."""
    import torch

    with ThreadPoolExecutor(max_workers=1) as other:  # modes are per thread: the file is read without the planner's
        program = other.submit(torch.export.load, path).result()
        module = other.submit(program.module).result()
    if program.example_inputs is None:
        raise SystemExit(f"{path}: it was saved without example inputs: export and save it again")
    arguments, named = (_without_data(inputs) for inputs in program.example_inputs)
    module.to_empty(device="cpu")
    with torch.no_grad():
        for _ in range(CALLS):
            module(*arguments, **named)


def _without_data(value: Any) -> Any:
    """Tensors in nested lists, tuples and dicts as empty ones of their shape, dtype and layout."""
    import torch

    if isinstance(value, torch.Tensor):
        return torch.empty_like(value, device="cpu")
    if isinstance(value, dict):
        return {key: _without_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_without_data(item) for item in value)
    return value


if __name__ == "__main__":
    main(sys.argv[1])
