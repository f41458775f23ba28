"""`perfscope parity --matrix`: one model in several dtypes, on several devices, from runs and recordings, in pairs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from msgspec import Struct

from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.parity.assemble import document_of, summary
from perfscope.plugins.parity.cases.document import SCHEMA, Case, Cases, case_of
from perfscope.plugins.parity.compare import Comparison, Side, coarsest
from perfscope.plugins.parity.document import Arrays, Weight, inputs_of
from perfscope.plugins.parity.errors import relative_error, rounded, roundoff
from perfscope.plugins.parity.maps import Chosen
from perfscope.plugins.parity.side import RunRequest
from perfscope.plugins.parity.sides import REFERENCE, RUN, Recorded, Runner, as_input, finest, started
from perfscope.plugins.parity.translation import Translation, translate

DTYPES = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}
RECORDED_WEIGHTS = "bfloat16"
"""dtype to which weights and inputs are rounded for a recording: the coarsest that a matrix may have, so that sides
recorded in any dtype have equal weights."""
_FAR = 4.0
"""Recorded inputs and weights are equal to those of the matrix up to so many units of the coarser dtype."""


class Spec(Struct, frozen=True):
    """A side of a matrix: run here on a device in a dtype, or recorded in a folder."""

    name: str
    device: str | None = None
    dtype: str | None = None
    folder: Path | None = None


class _Ran(Struct, frozen=True):
    name: str
    program: str
    side: Side
    reference: Side


def specs_of(text: str) -> list[Spec]:
    """Sides of an option: ``cpu-f32,cuda:1-bf16,h100-bf16@folder``. ``UsageError`` for another text."""
    specs = []
    for part in filter(None, map(str.strip, text.split(","))):
        name, at, folder = part.partition("@")
        device, _, dtype = name.rpartition("-")
        if at:
            specs.append(Spec(name, folder=Path(folder)))
        elif device and dtype in DTYPES:
            specs.append(Spec(name, device, DTYPES[dtype]))
        else:
            raise UsageError(f"--matrix {part}: give DEVICE-DTYPE with a dtype of {', '.join(DTYPES)}, or NAME@FOLDER")
    if len(specs) < 2 or len({spec.name for spec in specs}) < len(specs):
        raise UsageError(f"--matrix {text}: give two sides or more with different names")
    return specs


def compare_matrix(
    sources: Sequence[str], specs: Sequence[Spec], maps: Chosen, folder: Path, say: Callable[[str], None]
) -> Cases:
    """Run all sides with the same weights and inputs, and compare each pair; ``sources``: programs, one or two.

    Weights and inputs are those of the first recorded side, else of the first program. ``DataError`` with one line if a
    side cannot be run or read, or was recorded with other inputs or weights.
    """
    with ExitStack() as stack:
        matrix = _Matrix(sources, specs, maps, folder, stack)
        ran = [each for spec in specs for each in matrix.sides(spec, say)]
    cases = [_case(one, other, matrix.translation(one, other)) for one, other in itertools.combinations(ran, 2)]
    return Cases(
        schema=SCHEMA,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        kind="backends",
        sides=tuple(summary(each.name, each.side.recording) for each in ran),
        cases=tuple(cases),
    )


class _Matrix:
    """The programs and recordings of a matrix, with the weights and inputs that all of them have."""

    def __init__(
        self, sources: Sequence[str], specs: Sequence[Spec], maps: Chosen, folder: Path, stack: ExitStack
    ) -> None:
        self._sources, self._maps, self._folder, self._stack = sources, maps, folder, stack
        self._runners: dict[tuple[str, str | None], Runner] = {}
        self._translations: dict[tuple[str, str], Translation] = {}
        self._references: dict[str, Side] = {}
        recorded = next((spec.folder for spec in specs if spec.folder is not None), None)
        here = [spec for spec in specs if spec.folder is None]
        base = Recorded(recorded) if recorded is not None else self._runner(sources[0], here[0].device)
        self._weights, values = base.describe()
        self._torch = base.framework == "torch"
        self.coarsest = coarsest([spec.dtype for spec in here if spec.dtype] or ["float64"])
        if recorded is None:
            values = {name: rounded(value, self.coarsest) for name, value in values.items()}
        self._values = values
        self._inputs = [each.value for each in base.inputs()]
        if recorded is None:
            self._inputs = [as_input(value, self.coarsest) for value in self._inputs]

    def sides(self, spec: Spec, say: Callable[[str], None]) -> list[_Ran]:
        """The runs of a spec, one per program, or its recording."""
        if spec.folder is not None:
            return [self._recorded(spec.name, spec.folder)]
        found = []
        for number, source in enumerate(self._sources):
            name = f"{'ab'[number]}:{spec.name}" if len(self._sources) > 1 else spec.name
            say(f"running {name}")
            found.append(_Ran(name, source, self._run(source, spec, name), self._reference(source, spec.device)))
        return found

    def translation(self, one: _Ran, other: _Ran) -> Translation:
        """From the weights of a side to those of another one."""
        key = one.program, other.program
        if key not in self._translations:
            a, b = one.side.recording, other.side.recording
            self._translations[key] = self._translate(a.weights, b.weights, a.framework, b.framework)
        return self._translations[key]

    def _translate(self, a: Sequence[Weight], b: Sequence[Weight], of_a: str, of_b: str) -> Translation:
        pairs, layouts = self._maps if self._maps.pairs else ((), {})
        same = {weight.name for weight in a} == {weight.name for weight in b}
        return translate(
            a,
            b,
            a_is_torch=of_a == "torch",
            b_is_torch=of_b == "torch",
            options=() if same else pairs,
            layouts_of={} if same else layouts,
        )

    def _runner(self, source: str, device: str | None) -> Runner:
        if (source, device) not in self._runners:
            folder = self._folder / f"{'ab'[self._sources.index(source)]}-{device}".replace(":", "-")
            self._runners[source, device] = self._stack.enter_context(started(source, folder, device))
        return self._runners[source, device]

    def _weights_of(self, runner: Runner) -> Arrays:
        weights, _ = runner.describe(values=False)
        mine = "torch" if self._torch else runner.framework
        return self._translate(self._weights, weights, mine, runner.framework).to_b(self._values)

    def _run(self, source: str, spec: Spec, name: str) -> Side:
        runner = self._runner(source, spec.device)
        request = RunRequest(dtype=spec.dtype, weights=self._weights_of(runner), inputs=self._inputs)
        recording, arrays = runner.run(name.replace(":", "-"), request)
        return Side(recording=recording, arrays=arrays)

    def _reference(self, source: str, device: str | None) -> Side:
        if source not in self._references:
            runner = self._runner(source, device)
            request = RunRequest(dtype="float64", weights=self._weights_of(runner), inputs=self._inputs, wide=True)
            recording, arrays = runner.run(REFERENCE, request)
            self._references[source] = Side(recording=recording, arrays=arrays)
        return self._references[source]

    def _recorded(self, name: str, folder: Path) -> _Ran:
        run, reference = (
            Side(recording=recording, arrays=arrays)
            for recording, arrays in (Recorded(folder).run(kind, RunRequest()) for kind in (RUN, REFERENCE))
        )
        self._check_inputs(folder, run)
        return _Ran(name, str(folder), run, reference)

    def _check_inputs(self, folder: Path, run: Side) -> None:
        enough = _FAR * roundoff(coarsest([run.recording.dtype, self.coarsest, RECORDED_WEIGHTS]))
        given = inputs_of(run.arrays)
        equal = len(given) == len(self._inputs) and all(map(_near, given, self._inputs, itertools.repeat(enough)))
        if not equal:
            raise DataError(f"{folder}: it was recorded with other inputs; record it with those of the first folder: "
                            "perfscope parity FIRST PROGRAM --record FOLDER")  # fmt: skip
        mine = "torch" if self._torch else run.recording.framework
        translated = self._translate(self._weights, run.recording.weights, mine, run.recording.framework)
        for name, value in translated.to_b(self._values).items():
            if not _near(run.arrays.get(f"weight:{name}", np.empty(0)), value, enough):
                raise DataError(f"{folder}: it was recorded with other weights: {name} differs")


def _near(one: np.ndarray, other: np.ndarray, enough: float) -> bool:
    if one.size != other.size:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one.ravel(), other.ravel()))
    error = relative_error(one, other)
    return error is not None and error <= enough


def _case(one: _Ran, other: _Ran, translation: Translation) -> Case:
    """A pair, each of which is judged against the reference of the other one."""
    found = []
    for of_b in (False, True):
        reference = other.reference if of_b else one.reference
        try:
            comparison = Comparison(one.side, other.side, reference, of_b=of_b, translation=translation)
        except ValueError as error:
            raise DataError(f"{(other if of_b else one).name}: {error} than the run itself") from error
        document = document_of(comparison, (one.name, other.name), created_utc="", kept_weights=False)
        found.append(case_of(f"{one.name} and {other.name}", document, of_b=of_b, a=one.name, b=other.name))
    return max(found, key=lambda case: (case.verdict == "diverges", math.inf if case.share is None else case.share))


def record(
    source: str, folder: Path, *, like: Path | None, dtype: str | None, device: str | None, maps: Chosen
) -> None:
    """Record a side for a matrix into ``folder``, with the weights and inputs of the recording ``like``, or its own.

    ``DataError`` with one line if it cannot be run; then the folder is incomplete and is refused by a matrix.
    """
    if folder.exists():
        raise UsageError(f"{folder}: exists; recordings are not replaced")
    with started(source, folder, device) as runner:
        if like is None:
            weights, values = runner.describe()
            shared = coarsest([RECORDED_WEIGHTS, finest([weight.dtype for weight in weights])])
            values = {name: rounded(value, shared) for name, value in values.items()}
            inputs = [as_input(each.value, shared) for each in runner.inputs()]
        else:
            first = Recorded(like)
            weights_a, values_a = first.describe()
            weights, _ = runner.describe(values=False)
            values = translate(
                weights_a,
                weights,
                a_is_torch=first.framework == "torch",
                b_is_torch=runner.framework == "torch",
                options=maps.pairs,
                layouts_of=maps.layouts,
            ).to_b(values_a)
            inputs = [each.value for each in first.inputs()]
        runner.run(RUN, RunRequest(dtype=dtype, weights=values, inputs=inputs))
        runner.run(REFERENCE, RunRequest(dtype="float64", weights=values, inputs=inputs, wide=True))
    for file in folder.glob("*.npz"):
        file.unlink()
