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
from perfscope.plugins.parity.document import Arrays, Recording, Weight, load_arrays, load_recording
from perfscope.profiler.launch.program import end_with_us, path_with_package

LOG = "log.txt"


class SideProcess:
    """The process that runs the models of one side. Its log and recordings are in ``folder``."""

    def __init__(self, source: str, folder: Path, device: str | None = None) -> None:
        self.source, self.folder = source, folder
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

    def describe(self, *, values: bool = True) -> tuple[list[Weight], Arrays, str]:
        """Its weights, their ``values`` if wanted, and its framework.

        Without values its arrays may be abstract: on the meta device, or `jax.ShapeDtypeStruct`. ``DataError`` with one
        line if the user's function fails.
        """
        result = self._request({"do": "describe", "values": values})
        weights = msgspec.convert(result["weights"], list[Weight])
        return weights, load_arrays(self.folder / "own.npz") if values else {}, result["framework"]

    def run(
        self,
        name: str,
        *,
        dtype: str | None,
        weights: Arrays | None = None,
        inputs: Path | None = None,
        wide: bool = False,
    ) -> tuple[Recording, Arrays]:
        """Record a run into ``folder/name``; ``inputs``: the folder of the recording whose inputs are used."""
        file = self.folder / f"{name}.weights.npz"
        if weights is not None:
            np.savez(file, **weights)  # type: ignore[arg-type]
        given = {"weights": None if weights is None else str(file), "inputs": None if inputs is None else str(inputs)}
        self._request({"do": "run", "name": name, "dtype": dtype, "wide": wide, **given})
        return load_recording(self.folder / name)

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
