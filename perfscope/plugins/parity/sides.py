"""Runs both sides of `perfscope parity`, and the reference of one of them, and compares the recordings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from msgspec import Struct

from perfscope.model.errors import DataError
from perfscope.plugins.parity.assemble import document_of
from perfscope.plugins.parity.compare import Comparison, Side, coarsest
from perfscope.plugins.parity.document import Arrays, Parity, Recording, Weight, inputs_of, load_recording
from perfscope.plugins.parity.errors import DIGITS, rounded
from perfscope.plugins.parity.heads import with_heads
from perfscope.plugins.parity.maps import Chosen
from perfscope.plugins.parity.process import SideProcess
from perfscope.plugins.parity.side import Input, RunRequest
from perfscope.plugins.parity.translation import translate

RUN, REFERENCE = "run", "reference"
"""Names of recordings in the folder of a side."""


class Runner(Protocol):
    """A model that can be run: in another process, in this one, or a folder with recordings of it."""

    framework: str
    """Known after `describe`."""
    source: str

    def describe(self, *, values: bool = True) -> tuple[list[Weight], Arrays]:
        """Its weights, and their values if wanted."""

    def inputs(self) -> list[Input]:
        """Its own inputs."""

    def run(self, name: str, request: RunRequest) -> tuple[Recording, Arrays]:
        """Run it; ``name``: of the recording."""

    def probe(self, optimizer: Any) -> dict[str, dict[str, list[float]]]:
        """Responses of an optimizer to the probes of `update.rules`, by weight."""

    def update(self, optimizer: Any, starts: Arrays, gradients: Arrays, dtype: str | None) -> Arrays:
        """The weights after one step."""


class Recorded:
    """The recordings in a folder, which are read in place of runs."""

    def __init__(self, folder: Path) -> None:
        self.source, self.framework = str(folder), ""
        self._folder = folder

    def describe(self, *, values: bool = True) -> tuple[list[Weight], Arrays]:
        """Weights of the recorded run. ``DataError`` if it cannot be read."""
        recording, arrays = load_recording(self._folder / RUN)
        self.framework = recording.framework
        named = {name.removeprefix("weight:"): value for name, value in arrays.items() if name.startswith("weight:")}
        return list(recording.weights), named if values else {}

    def inputs(self) -> list[Input]:
        """Inputs of the recorded run."""
        arrays = load_recording(self._folder / RUN)[1]
        return [Input(str(number), value) for number, value in enumerate(inputs_of(arrays))]

    def run(self, name: str, request: RunRequest) -> tuple[Recording, Arrays]:
        """The recording of this name, whatever the request. ``DataError`` if it is missing."""
        del request
        return load_recording(self._folder / name)

    def probe(self, optimizer: Any) -> dict[str, dict[str, list[float]]]:
        """``DataError``: there is no program."""
        raise DataError(f"{self.source}: is a recording; the optimizer {optimizer} needs the program")

    def update(self, optimizer: Any, starts: Arrays, gradients: Arrays, dtype: str | None) -> Arrays:
        """``DataError``: there is no program."""
        del starts, gradients, dtype
        raise DataError(f"{self.source}: is a recording; the optimizer {optimizer} needs the program")


class Choices(Struct, frozen=True, kw_only=True):
    """How both sides are run and compared: options of the command."""

    dtype_a: str | None = None
    dtype_b: str | None = None
    weights: Path | None = None
    """Checkpoint with the weights of A."""
    keep_weights: bool = False
    maps: Chosen = Chosen((), {})
    heads_a: str | None = None
    heads_b: str | None = None
    """Heads of fused projections that alternate: see the module `heads`."""
    reference: Literal["a", "b"] = "a"
    reference_dtype: str = "float64"
    recipe_b: str | None = None
    """Recipe by which B rounds the factors of its products."""


@contextmanager
def started(source: str, folder: Path, device: str | None) -> Iterator[Runner]:
    """The model of a source: of a function in another process, or recorded in a folder."""
    if Path(source).is_dir():
        yield Recorded(Path(source))
        return
    process = SideProcess(source, folder, device)
    try:
        yield process
    finally:
        process.close()


class Pair:
    """Two models with the same weights, which are compared on any inputs. ``say`` is called before each run."""

    def __init__(self, a: Runner, b: Runner, choices: Choices, say: Callable[[str], None] = lambda _: None) -> None:
        """Translate A's weights; ``DataError`` in one line if they do not fit B."""
        self._a, self._b, self._choices, self._say = a, b, choices, say
        weights_a, values = a.describe()
        if choices.weights is not None:
            values |= _from_file(choices.weights, weights_a, torch=a.framework == "torch")
        weights_b, _ = b.describe(values=False)
        weights_a = with_heads(weights_a, choices.heads_a, "a")
        weights_b = with_heads(weights_b, choices.heads_b, "b")
        self.translation = translate(
            weights_a,
            weights_b,
            a_is_torch=a.framework == "torch",
            b_is_torch=b.framework == "torch",
            options=choices.maps.pairs,
            layouts_of=choices.maps.layouts,
        )
        finest_b = choices.dtype_b or finest([weight.dtype for weight in weights_b])
        own = {weight.name: choices.dtype_a or weight.dtype for weight in weights_a}
        self.coarsest = coarsest([finest_b, choices.dtype_a or finest([weight.dtype for weight in weights_a])])
        if not choices.keep_weights:
            values = {name: rounded(value, coarsest([own[name], finest_b])) for name, value in values.items()}
        self.values_a: Arrays = values
        self.values_b = None if choices.keep_weights else self.translation.to_b(values)

    @property
    def of_b(self) -> bool:
        """Whether the reference is of B."""
        return self._choices.reference == "b"

    def inputs(self) -> list[Input]:
        """A's own inputs."""
        return self._a.inputs()

    def compare(self, inputs: Sequence[np.ndarray] | None = None, folder: str = "") -> Comparison:
        """Run both and the reference; ``inputs``: in place of A's own, maybe of another shape.

        ``folder``: of the recordings, in that of their side.
        """
        choices = self._choices
        given = None if inputs is None else [as_input(value, self.coarsest) for value in inputs]
        self._say("running A")
        a = self._a.run(
            folder + RUN,
            RunRequest(dtype=choices.dtype_a, weights=self.values_a, inputs=given, other_lengths=given is not None),
        )
        same = RunRequest(inputs=inputs_of(a[1]), other_lengths=given is not None)
        self._say("running B")
        b = self._b.run(
            folder + RUN, _with(same, dtype=choices.dtype_b, weights=self.values_b, recipe=choices.recipe_b)
        )
        of_b = self.of_b
        dtype = choices.reference_dtype
        self._say(f"running the reference, {choices.reference.upper()} in {dtype}")
        reference = (self._b if of_b else self._a).run(
            folder + REFERENCE,
            _with(same, dtype=dtype, weights=self.values_b if of_b else self.values_a, wide=dtype == "float64"),
        )
        sides = [Side(recording=recording, arrays=arrays) for recording, arrays in (a, b, reference)]
        try:
            return Comparison(*sides, of_b=of_b, translation=self.translation)
        except ValueError as error:
            source = (self._b if of_b else self._a).source
            raise DataError(f"{source}: {error} than the run itself") from error

    def document(self, comparison: Comparison, optimizers: tuple[Any, Any] | None = None) -> Parity:
        """The comparison as a document, with one step of the ``optimizers`` of A and B if they are given."""
        stepped = None
        if optimizers is not None:
            from perfscope.plugins.parity.update.stepping import step

            self._say("one step of the optimizers")
            dtypes = (self._choices.dtype_a, self._choices.dtype_b)
            stepped = step(self._a, self._b, comparison, optimizers, dtypes)
        return document_of(
            comparison,
            (self._a.source, self._b.source),
            created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            kept_weights=self._choices.keep_weights,
            updates=() if stepped is None else stepped.rows,
            groups=() if stepped is None else stepped.groups,
        )


def _with(
    request: RunRequest,
    *,
    dtype: str | None,
    weights: Arrays | None,
    wide: bool = False,
    recipe: str | None = None,
) -> RunRequest:
    return RunRequest(
        dtype=dtype,
        weights=weights,
        inputs=request.inputs,
        other_lengths=request.other_lengths,
        wide=wide,
        recipe=recipe,
    )


def as_input(value: np.ndarray, dtype: str) -> np.ndarray:
    """The value as an input that a run in ``dtype`` does not round; other than floating-point values unchanged."""
    return rounded(value, dtype) if value.dtype.kind == "f" else value


def finest(dtypes: Sequence[str]) -> str:
    """The dtype with the most digits; float32 without any."""
    return max(dtypes, key=lambda name: DIGITS.get(name, 24), default="float32")


def _from_file(file: Path, weights: Sequence[Weight], *, torch: bool) -> Arrays:
    from perfscope.plugins.parity.checkpoints import open_checkpoint, widened

    opened = open_checkpoint(file)
    values = {weight.name: widened(opened.arrays[weight.name], weight.dtype) for weight in opened.weights}
    try:
        return translate(opened.weights, weights, a_is_torch=opened.torch, b_is_torch=torch).to_b(values)
    except DataError as error:
        raise DataError(f"{file} (as A) for the model of A (as B): {error}") from error
