"""``perfscope parity``: one model in two frameworks, dtypes, backends or commits, compared layer by layer."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.compare.outputs import new_folder
from perfscope.commands.options import (
    STDOUT,
    announce,
    output_folder_option,
    quiet_option,
    screen,
    verbose_option,
    write_answers,
)
from perfscope.model.errors import DONE, GATE_NOT_MET, INCONCLUSIVE, DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perfscope.plugins.parity.cases.document import Cases
    from perfscope.plugins.parity.sides import Choices, Pair

DTYPES = ("float64", "float32", "bfloat16", "float16")
SIDES = ("a", "b")


@click.command()
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option("--dtype-a", type=click.Choice(DTYPES), help="Run A in this dtype. [as it is]")
@click.option("--dtype-b", type=click.Choice(DTYPES), help="Run B in this dtype. [as it is]")
@click.option(
    "--recipe-b", metavar="NAME", help="B rounds the factors of its products: e4m3-row, mxfp8, nvfp4 ... (simulated)."
)
@click.option("--device-a", metavar="NAME", help="Run A there: cpu, cuda:1 (PyTorch); cpu, gpu, tpu (JAX).")
@click.option("--device-b", metavar="NAME", help="Run B there.")
@click.option(
    "--weights",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Weights of A: a checkpoint, as `perfscope convert` reads it.",
)
@click.option("--keep-weights", is_flag=True, help="B keeps its own weights, and they are compared with A's.")
@click.option(
    "--map",
    "maps",
    multiple=True,
    metavar="A=B|FILE",
    help="A weight of A is this one of B, or a file of `perfscope convert --write-map`.",
)
@click.option("--heads-a", metavar="Q/KV", help="A: fused query, key and value alternate per head, in so many.")
@click.option("--heads-b", metavar="Q/KV", help="The same of B.")
@click.option(
    "--reference", type=click.Choice(SIDES), default="a", show_default=True, help="Side to hold errors against."
)
@click.option(
    "--reference-dtype",
    type=click.Choice(("float64", "float32")),
    default="float64",
    show_default=True,
    help="Its dtype.",
)
@click.option(
    "--optimizer",
    "optimizers",
    multiple=True,
    metavar="NAME|FILE",
    help="Compare one step too: sgd, adam or adamw with the defaults of each framework, or file.py:function, which "
    "makes it; twice for A and B.",
)
@click.option(
    "--inputs",
    metavar="REGIMES",
    help="Compare on inputs of these regimes, a row each: adversarial (all), or names with commas between them.",
)
@click.option(
    "--matrix",
    metavar="SIDES",
    help="Compare pairs of sides: DEVICE-DTYPE (cpu-f32, cuda-bf16) of A, and of B if given; NAME@FOLDER: a recording.",
)
@click.option(
    "--record",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Record A for a matrix, or B with the weights and inputs of the recording A, and compare nothing.",
)
@click.option(
    "--tolerance",
    type=click.Choice(("exact", "rounding")),
    default="exact",
    show_default=True,
    help="Runs with fingerprints: the first op whose values differ, or whose difference rounding does not explain.",
)
@click.option("--shift", type=int, metavar="N", help="Runs with fingerprints: step N of A is step 0 of B. [found]")
@click.option("--markdown", metavar="FILE", help="Write the result of runs with fingerprints as a comment.")
@click.option("--fail-on", type=click.Choice(("divergence",)), help="Exit 1 where both part.")
@click.option("--strict", is_flag=True, help="Exit 3 where a layer of one side has no counterpart.")
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON (- for stdout, alone).")
@output_folder_option("the recordings")
@quiet_option
@verbose_option
def parity(a: str | None, b: str | None, **settings: Any) -> int:
    """Compare a model with itself in another framework, dtype, backend or commit, layer by layer.

    A and B are `file.py:function` or `module:function`. The function takes no arguments and returns the model and its
    inputs: (module, inputs) for PyTorch, Flax nnx and Equinox, (function, parameters, inputs) for JAX, where a Flax
    linen module may replace the function. B runs with A's weights and inputs. A may be the folder `a` of an earlier
    comparison.

    Two runs that `perfscope run --fingerprint` recorded are compared op by op, up to the first difference.

    Two folders of runs that `perfscope run --numerics` recorded are compared by their losses and gradient norms: the
    first step in which they differ by more than the runs of one side do.
    """
    from perfscope.model.files import write_atomically
    from perfscope.plugins.parity.document import FILE, dump
    from perfscope.plugins.parity.sections import render_text

    if settings["matrix"] is not None:
        return _matrix([source for source in (a, b) if source is not None], settings)
    if settings["record"] is not None and a is not None:
        return _record(a, b, settings)
    if a is None or b is None:
        raise UsageError("give two sides, A and B")
    a, b = _folder_of(a), _folder_of(b)
    if _holds_runs(a) and _holds_runs(b):
        return _runs(Path(a), Path(b), settings)
    if settings["markdown"] or settings["shift"] is not None or settings["tolerance"] != "exact":
        raise UsageError("--tolerance, --shift and --markdown are for two runs with fingerprints")
    for source in (a, b):
        _check_source(source, folders=True)
    if Path(a).is_dir() and settings["inputs"]:
        raise UsageError(f"{a}: is a recording, which has one set of inputs; --inputs needs the program")
    if Path(a).is_dir() and (settings["dtype_a"] or settings["device_a"] or settings["weights"]):
        raise UsageError(f"{a}: is a recording; --dtype-a, --device-a and --weights change nothing there")
    folder = new_folder(settings["output"], "parity")
    if settings["inputs"] is not None:
        return _regimes(a, b, folder, settings)
    with _pair(a, b, folder, settings) as pair:
        document = pair.document(pair.compare(), _optimizers(settings["optimizers"]))
    write_atomically(folder / FILE, dump(document))
    write_answers([(settings["json_file"], lambda: dump(document).decode())], quiet=settings["quiet"])
    if settings["json_file"] != STDOUT:
        click.echo(render_text(document, **screen(sys.stdout), verbose=settings["verbose"]), nl=False, color=True)
    announce(f"recordings and result kept in {folder}", quiet=settings["quiet"])
    if document.verdict == "diverges" and settings["fail_on"]:
        return GATE_NOT_MET
    open_ = document.verdict == "not compared" or document.unmatched_a or document.unmatched_b
    return INCONCLUSIVE if open_ and settings["strict"] else DONE


def _optimizers(given: tuple[str, ...]) -> tuple[str, str] | None:
    """The optimizers of A and B. ``UsageError`` for an unknown name."""
    from perfscope.plugins.parity.update.probing import NAMED

    for name in given:
        if name not in NAMED:
            if ":" not in name:
                raise UsageError(f"--optimizer {name}: must be one of {', '.join(NAMED)}, or file.py:function")
            _check_source(name, folders=False)
    if len(given) > 2:
        raise UsageError("--optimizer: give it once for both sides, or twice")
    return (given[0], given[-1]) if given else None


@contextmanager
def _pair(a: str, b: str, folder: Path, settings: dict[str, Any]) -> Iterator[Pair]:
    from perfscope.plugins.parity.sides import Pair, started

    with (
        started(b, folder / "b", settings["device_b"]) as side_b,
        started(a, folder / "a", settings["device_a"]) as side_a,
    ):
        yield Pair(side_a, side_b, _choices(settings), _say(settings))


def _say(settings: dict[str, Any]) -> Callable[[str], None]:
    return lambda text: announce(text, quiet=settings["quiet"])


def _regimes(a: str, b: str, folder: Path, settings: dict[str, Any]) -> int:
    from perfscope.plugins.parity.cases.regimes import compare_regimes
    from perfscope.plugins.parity.inputs import regime_names

    names = regime_names(settings["inputs"])
    with _pair(a, b, folder, settings) as pair:
        return _answer_cases(compare_regimes(pair, names, folder, _say(settings)), folder, settings)


def _answer_cases(document: Cases, folder: Path, settings: dict[str, Any]) -> int:
    from perfscope.model.files import write_atomically
    from perfscope.plugins.parity.cases.document import FILE, dump
    from perfscope.plugins.parity.cases.sections import render_text

    write_atomically(folder / FILE, dump(document))
    write_answers([(settings["json_file"], lambda: dump(document).decode())], quiet=settings["quiet"])
    if settings["json_file"] != STDOUT:
        click.echo(render_text(document, **screen(sys.stdout), verbose=settings["verbose"]), nl=False, color=True)
    announce(f"recordings and result kept in {folder}", quiet=settings["quiet"])
    verdicts = {case.verdict for case in document.cases}
    if "diverges" in verdicts and settings["fail_on"]:
        return GATE_NOT_MET
    return INCONCLUSIVE if settings["strict"] and verdicts & {"not run", "not compared"} else DONE


def _choices(settings: dict[str, Any]) -> Choices:
    from perfscope.plugins.parity.maps import chosen
    from perfscope.plugins.parity.sides import Choices
    from perfscope.plugins.precision import RECIPES

    recipe = settings["recipe_b"]
    known = [name for name, one in RECIPES.items() if one.scaling != "delayed"]
    if recipe is not None and recipe not in known:
        raise UsageError(f"--recipe-b {recipe}: must be one of {', '.join(known)}")
    taken = {name: settings[name] for name in Choices.__struct_fields__ if name != "maps"}
    return Choices(maps=chosen(settings["maps"]), **taken)


def _check_source(source: str, *, folders: bool) -> None:
    if folders and Path(source).is_dir():
        return
    if ":" not in source:
        raise UsageError(f"{source}: give file.py:function or module:function")
    file = Path(source.rpartition(":")[0])
    if file.suffix == ".py" and not file.is_file():
        raise UsageError(f"{source}: {file}: no such file")


def _matrix(sources: list[str], settings: dict[str, Any]) -> int:
    from perfscope.plugins.parity.cases.matrix import compare_matrix, specs_of
    from perfscope.plugins.parity.maps import chosen

    specs = specs_of(settings["matrix"])
    for source in sources:
        _check_source(source, folders=False)
    lone = next((spec.name for spec in specs if spec.folder is None and not sources), None)
    if lone is not None:
        raise UsageError(f"--matrix {lone}: is run here and needs a program: file.py:function")
    missing = next((spec.folder for spec in specs if spec.folder is not None and not spec.folder.is_dir()), None)
    if missing is not None:
        raise UsageError(f"--matrix: {missing}: no such folder")
    folder = new_folder(settings["output"], "parity")
    document = compare_matrix(sources, specs, chosen(settings["maps"]), folder, _say(settings))
    return _answer_cases(document, folder, settings)


def _record(a: str, b: str | None, settings: dict[str, Any]) -> int:
    from perfscope.plugins.parity.cases.matrix import record
    from perfscope.plugins.parity.maps import chosen

    side = "a" if b is None else "b"
    if b is not None and not Path(a).is_dir():
        raise UsageError(f"--record of {b}: {a} must be the folder of a recording")
    source = a if b is None else b
    _check_source(source, folders=False)
    record(
        source,
        settings["record"],
        like=None if b is None else Path(a),
        dtype=settings[f"dtype_{side}"],
        device=settings[f"device_{side}"],
        maps=chosen(settings["maps"]),
    )
    click.echo(f"recorded {source} in {settings['record']}: --matrix NAME@{settings['record']}")
    return DONE


def _folder_of(source: str) -> str:
    """The folder of a run that is given by its name; other values unchanged."""
    from perfscope.model.documents import run_folders

    if ":" in source or Path(source).exists():
        return source
    try:
        return str(run_folders.find(source))
    except DataError:
        return source


def _holds_runs(source: str) -> bool:
    """Whether it is a run of `perfscope run`, or a folder of them."""
    from perfscope.model.documents import run_folders

    return Path(source).is_dir() and (run_folders.is_run(Path(source)) or bool(run_folders.directories(Path(source))))


def _runs(a: Path, b: Path, settings: dict[str, Any]) -> int:
    from perfscope.plugins.fingerprint import compare_folders, has_fingerprints

    if has_fingerprints(a) or has_fingerprints(b):
        return compare_folders(a, b, settings)
    return _trainings(a, b, settings)


def _trainings(a: Path, b: Path, settings: dict[str, Any]) -> int:
    from perfscope.plugins.parity.training import compare_trainings
    from perfscope.plugins.parity.training_sections import render_text

    document = compare_trainings(a, b)
    write_answers([(settings["json_file"], lambda: document.dump().decode())], quiet=settings["quiet"])
    if settings["json_file"] != STDOUT:
        click.echo(render_text(document, **screen(sys.stdout), verbose=settings["verbose"]), nl=False, color=True)
    if document.parts and settings["fail_on"]:
        return GATE_NOT_MET
    return INCONCLUSIVE if document.open and settings["strict"] else DONE
