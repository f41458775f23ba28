"""Starts the process of a side and requests recordings from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from perfscope.model.errors import DataError
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.parity.child import OWN, OWN_INPUTS, UPDATED
from perfscope.plugins.parity.document import (
    Arrays,
    Recording,
    Weight,
    inputs_by_key,
    inputs_of,
    load_arrays,
    load_recording,
)
from perfscope.plugins.parity.side import Input, RunRequest
from perfscope.profiler.launch.program import end_with_us, path_with_package

LOG = "log.txt"


class SideProcess:
    """The process that runs the models of one side. Its log and recordings are in ``folder``."""

    def __init__(self, source: str, folder: Path, device: str | None = None) -> None:
        self.source, self.folder, self.framework = source, folder, ""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOG).open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "perfscope.plugins.parity.child", source, device or "", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path_with_package()},
                text=True,
                preexec_fn=end_with_us(),
            )

    def describe(self, *, values: bool = True) -> tuple[list[Weight], Arrays]:
        """Its weights, and their ``values`` if wanted.

        Without values its arrays may be abstract: on the meta device, or `jax.ShapeDtypeStruct`. ``DataError`` with one
        line if the user's function fails.
        """
        result = self._request({"do": "describe", "values": values})
        self.framework = result["framework"]
        return msgspec.convert(result["weights"], list[Weight]), load_arrays(self.folder / OWN) if values else {}

    def inputs(self) -> list[Input]:
        """Its own inputs."""
        names = self._request({"do": "inputs"})["names"]
        return [Input(*pair) for pair in zip(names, inputs_of(load_arrays(self.folder / OWN_INPUTS)), strict=True)]

    def run(self, name: str, request: RunRequest) -> tuple[Recording, Arrays]:
        """Record a run into ``folder/name``."""
        files: dict[str, str | None] = {"weights": None, "inputs": None}
        inputs = None if request.inputs is None else inputs_by_key(request.inputs)
        for what, arrays in (("weights", request.weights), ("inputs", inputs)):
            if arrays is not None:
                files[what] = str(self.folder / f"{name}.{what}.npz")
                np.savez(str(files[what]), **arrays)  # type: ignore[arg-type]
        names = ("dtype", "wide", "other_lengths", "recipe")
        how = {name: getattr(request, name) for name in names}
        self._request({"do": "run", "name": name, "how": how, **files})
        return load_recording(self.folder / name)

    def probe(self, optimizer: str) -> dict[str, dict[str, list[float]]]:
        """Responses of an optimizer to the probes of `update.rules`, by weight."""
        found: dict[str, dict[str, list[float]]] = self._request({"do": "probe", "optimizer": optimizer})["responses"]
        return found

    def update(self, optimizer: str, starts: Arrays, gradients: Arrays, dtype: str | None) -> Arrays:
        """The weights after one step."""
        files = {"starts": self.folder / "starts.npz", "gradients": self.folder / "gradients.npz"}
        for name, arrays in (("starts", starts), ("gradients", gradients)):
            np.savez(files[name], **arrays)  # type: ignore[arg-type]
        named = {name: str(file) for name, file in files.items()}
        self._request({"do": "update", "optimizer": optimizer, "dtype": dtype, **named})
        return load_arrays(self.folder / UPDATED)

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.wait()

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = _pipe(self._child.stdin), _pipe(self._child.stdout)
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise DataError(f"{self.source}: its process ended with {self._child.wait()}; see {self.folder / LOG}")
        result: dict[str, Any] = json.loads(line)
        if "error" in result:
            raise DataError(f"{self.source}: {sanitize(result['error'], 500)}; see {self.folder / LOG}")
        return result


def _pipe(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise ValueError("the process has no pipe")
    return stream
