"""The process of one side: ``python -m perfscope.plugins.parity.child SOURCE DEVICE FOLDER``.

It answers requests, one line of JSON each, on its stdin; output of the user's code goes to stderr.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from perfscope.plugins.parity.document import inputs_by_key, inputs_of, load_arrays, save_recording
from perfscope.plugins.parity.side import SEED, RunRequest, Side, SideError
from perfscope.plugins.parity.update.probing import NAMED, responses

OWN, OWN_INPUTS, UPDATED = "own.npz", "own-inputs.npz", "updated.npz"


def load_function(source: str) -> Callable[..., Any]:
    """The function named by ``file.py:function`` or ``module:function``. ``SideError`` if it does not exist."""
    where, _, name = source.rpartition(":")
    if where.endswith(".py"):
        file = Path(where).resolve()
        sys.path.insert(0, str(file.parent))
        spec = importlib.util.spec_from_file_location(file.stem, file)
        if spec is None or spec.loader is None or not file.is_file():
            raise SideError(f"{where}: no such file")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(file.stem, module)
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, str(Path.cwd()))
        try:
            module = importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise SideError(f"{where}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise SideError(f"{where}: has no function {name}")
    return cast("Callable[..., Any]", function)


def _seeded(function: Callable[[], Any]) -> Callable[[], Any]:
    def make() -> Any:
        random.seed(SEED)
        np.random.seed(SEED)  # noqa: NPY002 - the user's code may use it
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(SEED)
        made = function()
        if not isinstance(made, tuple) or len(made) not in (2, 3):
            raise SideError("it returns no (module, inputs) and no (function, parameters, inputs)")
        return made

    return make


def side_of(make: Callable[[], Any], device: str | None) -> Side:
    """The framework of the result of ``make``."""
    made = make()
    if "torch" in sys.modules and isinstance(made[0], sys.modules["torch"].nn.Module):
        from perfscope.plugins.parity.torch_side import TorchSide

        return TorchSide(make, device)
    if "jax" not in sys.modules:
        raise SideError(f"a {type(made[0]).__name__} is not a PyTorch model, and jax is not imported")
    from perfscope.plugins.parity.jax_side import JaxSide

    return JaxSide(make, device)


def answer(side: Side, request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Handle one request."""
    if request["do"] == "describe":
        weights, arrays = side.describe(values=request["values"])
        if request["values"]:
            np.savez(folder / OWN, **arrays)  # type: ignore[arg-type]
        return {"weights": msgspec.to_builtins(weights), "framework": side.framework}
    if request["do"] == "inputs":
        own = side.inputs()
        np.savez(folder / OWN_INPUTS, **inputs_by_key([each.value for each in own]))  # type: ignore[arg-type]
        return {"names": [each.name for each in own]}
    if request["do"] in ("update", "probe"):
        return _update(side, request, folder)
    given = load_arrays(Path(request["weights"])) if request["weights"] else None
    inputs = inputs_of(load_arrays(Path(request["inputs"]))) if request["inputs"] else None
    run = RunRequest(weights=given, inputs=inputs, **request["how"])
    recording, arrays = side.run(run)
    save_recording(folder / request["name"], recording, arrays)
    return {}


def _update(side: Side, request: dict[str, Any], folder: Path) -> dict[str, Any]:
    optimizer = request["optimizer"]
    made = optimizer if optimizer in NAMED else load_function(optimizer)
    if request["do"] == "probe":
        weights = [weight for weight in side.describe(values=False)[0] if weight.kind != "buffer"]
        return {"responses": responses(weights, lambda starts, each: side.updates(made, starts, each, "float64"))}
    starts, gradients = (load_arrays(Path(request[name])) for name in ("starts", "gradients"))
    np.savez(folder / UPDATED, **side.updates(made, starts, [gradients], request["dtype"])[0])  # type: ignore[arg-type]
    return {}


def main(arguments: list[str]) -> None:
    """Answer until stdin ends."""
    source, device, folder = arguments
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side: Side | None = None
    for line in sys.stdin:
        try:
            side = side or side_of(_seeded(load_function(source)), device or None)
            result = answer(side, json.loads(line), Path(folder))
        except SideError as error:
            result = {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        answers.write(json.dumps(result) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
