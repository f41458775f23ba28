"""`perfscope parity A B --inputs ...`: both models on each regime of inputs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from perfscope.model.errors import DataError
from perfscope.plugins.parity.cases.document import SCHEMA, Case, Cases, case_of
from perfscope.plugins.parity.inputs import EXAMPLE, derived
from perfscope.plugins.parity.sides import Pair


def compare_regimes(pair: Pair, names: Sequence[str], folder: Path, say: Callable[[str], None]) -> Cases:
    """Compare on the example inputs and on each regime.

    Recordings of regimes on which both are the same are deleted. ``DataError`` if the example inputs cannot be run.
    """
    inputs = pair.inputs()
    cases, sides = list[Case](), None
    for name in dict.fromkeys((EXAMPLE, *names)):
        made = derived(name, inputs)
        if made is None:
            cases.append(Case(name=name, verdict="does not apply", reason=WITHOUT[name]))
            continue
        say(f"inputs: {name}")
        try:
            document = pair.document(pair.compare(None if name == EXAMPLE else made, f"{name}-"))
        except DataError as error:
            if name == EXAMPLE:
                raise
            cases.append(Case(name=name, verdict="not run", reason=str(error)))
            continue
        sides = sides or (document.a, document.b)
        cases.append(case_of(name, document, of_b=pair.of_b))
        if document.verdict == "same":
            for recording in folder.glob(f"*/{name}-*"):
                shutil.rmtree(recording) if recording.is_dir() else recording.unlink()
    return Cases(
        schema=SCHEMA,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        kind="inputs",
        sides=sides or (),
        cases=tuple(cases),
    )


_NO_FLOATS = "no floating-point input"
_NO_MASK = "no mask among the inputs"
_NO_LENGTH = "no sequences among the inputs"
WITHOUT = {
    EXAMPLE: "no inputs",
    "zeros": "no ids and no floating-point input",
    "random": "no ids and no floating-point input",
    "heavy-tails": "no ids and no floating-point input",
    "cancellation": _NO_FLOATS,
    "offset": _NO_FLOATS,
    "ragged": _NO_LENGTH,
    "masks": _NO_MASK,
    "masked-out": _NO_MASK,
    "long": _NO_LENGTH,
}
"""Why a regime does not apply."""
