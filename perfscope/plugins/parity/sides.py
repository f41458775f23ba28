"""Runs both sides of `perfscope parity`, and the reference of one of them, and compares the recordings."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from perfscope.commands.options import announce
from perfscope.model.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.plugins.parity.compare import Side
    from perfscope.plugins.parity.document import Arrays, Parity, Weight
    from perfscope.plugins.parity.process import SideProcess

RUN, REFERENCE = "run", "reference"


class _A(Struct):
    """Data of A that B needs."""

    weights: Sequence[Weight]
    values: Arrays
    torch: bool
    process: SideProcess | None
    """``None`` for a recording."""
    folder: Path


def compare_sides(source_a: str, source_b: str, folder: Path, settings: dict[str, Any]) -> Parity:
    """Run both sides and the reference, and compare them; ``settings``: the options of the command."""
    from perfscope.plugins.parity.assemble import document_of
    from perfscope.plugins.parity.compare import Comparison, Side
    from perfscope.plugins.parity.maps import chosen
    from perfscope.plugins.parity.process import SideProcess
    from perfscope.plugins.parity.translation import translate

    wanted = chosen(settings["maps"])
    with ExitStack() as ending:
        process_b = SideProcess(source_b, folder / "b", settings["device_b"])
        ending.callback(process_b.close)
        a = _side_a(source_a, folder, settings, ending)
        weights_b, _, framework_b = process_b.describe(values=False)
        translation = translate(
            a.weights,
            weights_b,
            a_is_torch=a.torch,
            b_is_torch=framework_b == "torch",
            options=wanted.pairs,
            layouts_of=wanted.layouts,
        )
        values = a.values if settings["keep_weights"] else _shared(a, weights_b, settings)
        side_a = _run_a(a, values, settings["dtype_a"], settings["quiet"])
        given = None if settings["keep_weights"] else translation.to_b(values)
        announce("running B", quiet=settings["quiet"])
        run_b = process_b.run(RUN, dtype=settings["dtype_b"], weights=given, inputs=a.folder / RUN)
        of_b = settings["reference"] == "b"
        reference = _reference(a, process_b if of_b else a.process, values if not of_b else given, settings)
        try:
            comparison = Comparison(
                side_a, Side(recording=run_b[0], arrays=run_b[1]), reference, of_b=of_b, translation=translation
            )
        except ValueError as error:
            raise DataError(f"{source_b if of_b else source_a}: {error} than the run itself") from error
        return document_of(
            comparison,
            (source_a, source_b),
            created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            kept_weights=settings["keep_weights"],
        )


def _side_a(source: str, folder: Path, settings: dict[str, Any], ending: ExitStack) -> _A:
    """A, started, with the weights that both sides run with."""
    from perfscope.plugins.parity.document import load_recording
    from perfscope.plugins.parity.process import SideProcess

    if Path(source).is_dir():
        recording, arrays = load_recording(Path(source) / RUN)
        values = {name.removeprefix("weight:"): value for name, value in arrays.items() if name.startswith("weight:")}
        return _A(recording.weights, values, recording.framework == "torch", None, Path(source))
    process = SideProcess(source, folder / "a", settings["device_a"])
    ending.callback(process.close)
    weights, values, framework = process.describe()
    if settings["weights"] is not None:
        values |= _from_file(settings["weights"], weights, torch=framework == "torch")
    return _A(weights, values, framework == "torch", process, folder / "a")


def _from_file(file: Path, weights: Sequence[Weight], *, torch: bool) -> Arrays:
    from perfscope.plugins.parity.checkpoints import open_checkpoint, widened
    from perfscope.plugins.parity.translation import translate

    opened = open_checkpoint(file)
    values = {weight.name: widened(opened.arrays[weight.name], weight.dtype) for weight in opened.weights}
    try:
        return translate(opened.weights, weights, a_is_torch=opened.torch, b_is_torch=torch).to_b(values)
    except DataError as error:
        raise DataError(f"{file} (as A) for the model of A (as B): {error}") from error


def _shared(a: _A, weights_b: Sequence[Weight], settings: dict[str, Any]) -> Arrays:
    """A's weights, rounded once to the coarser of both dtypes, so that all runs have the same."""
    from perfscope.plugins.parity.compare import coarsest
    from perfscope.plugins.parity.errors import DIGITS, rounded

    dtypes_b = [weight.dtype for weight in weights_b]
    finest_b = settings["dtype_b"] or max(dtypes_b, key=lambda name: DIGITS.get(name, 24), default="float32")
    own = {weight.name: settings["dtype_a"] or weight.dtype for weight in a.weights}
    return {name: rounded(value, coarsest([own[name], finest_b])) for name, value in a.values.items()}


def _run_a(a: _A, values: Arrays, dtype: str | None, quiet: bool) -> Side:
    from perfscope.plugins.parity.compare import Side
    from perfscope.plugins.parity.document import load_recording

    announce("running A", quiet=quiet)
    if a.process is None:
        recording, arrays = load_recording(a.folder / RUN)
    else:
        recording, arrays = a.process.run(RUN, dtype=dtype, weights=values)
    return Side(recording=recording, arrays=arrays)


def _reference(a: _A, process: SideProcess | None, values: Arrays | None, settings: dict[str, Any]) -> Side:
    from perfscope.plugins.parity.compare import Side
    from perfscope.plugins.parity.document import load_recording

    dtype = settings["reference_dtype"]
    announce(f"running the reference, {settings['reference'].upper()} in {dtype}", quiet=settings["quiet"])
    if process is None:
        recording, arrays = load_recording(a.folder / REFERENCE)
    else:
        recording, arrays = process.run(
            REFERENCE, dtype=dtype, weights=values, inputs=a.folder / RUN, wide=dtype == "float64"
        )
    return Side(recording=recording, arrays=arrays)
