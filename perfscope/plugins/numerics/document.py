"""Values of tensors in one process, recorded by `perfscope run --numerics`: ``numerics.json.gz``.

Only the standard library is imported at the top: it is written from inside the user's process.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from perfscope.model.trace import Trace

NUMERICS_SCHEMA = "perfscope.numerics/1"
NUMERICS_FILE = "numerics.json.gz"
MOST_BYTES = 64 << 20
"""Most bytes after decompression."""

Kind = Literal["input", "output", "loss", "gradient", "parameter gradient", "parameter"]
"""``input`` of a model; ``output`` of a module; ``gradient`` of an output."""
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order in which a step computes them."""
State = Literal["nan", "inf", "-inf"]
"""The worst value of a tensor; ``-inf``: it has neither NaN nor +inf."""


class Format(NamedTuple):
    """A floating-point format, by magnitudes in float32: rounded to nearest, none scaled."""

    name: str
    zero: float
    """Magnitudes up to this become 0: half the smallest subnormal number."""
    normal: float
    """The smallest normal number: nonzero magnitudes below have fewer significant bits."""
    largest: float
    """Magnitudes above this overflow: the largest finite number and half a unit in its last place."""


FORMATS = (
    Format("bfloat16", 2.0**-134, 2.0**-126, (2 - 2.0**-8 - 2.0**-23) * 2.0**127),
    Format("float16", 2.0**-25, 2.0**-14, (2 - 2.0**-11 - 2.0**-23) * 2.0**15),
    Format("float8_e4m3", 2.0**-10, 2.0**-6, 464.0),
    Format("float8_e5m2", 2.0**-17, 2.0**-14, (2 - 2.0**-3 - 2.0**-23) * 2.0**15),
)
"""Units in the last place end at an odd significand in all but e4m3 (NaN takes its place): there the middle itself
overflows, and the number before it is the last that does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatCounts:
    """Number of counted values that a format cannot represent."""

    overflow: int
    flushed: int
    """Nonzero, and 0 in the format."""
    subnormal: int
    """Nonzero in the format, and with fewer significant bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStatistics:
    """A tensor over all steps in which it was seen."""

    kind: Kind
    name: str
    """Name of the parameter, or of the module with the number of the output."""
    type: str
    """Class of the module; empty where none is known."""
    dtype: str
    line: str = ""
    """``train.py:88``: the line that calls the module."""
    elements: int
    steps: int
    counted: int
    """Values that were counted, in some of the steps."""
    zero: int
    formats: tuple[FormatCounts, ...]
    """In the order of ``FORMATS``."""
    amax: tuple[tuple[int, float], ...]
    """(Step, largest finite magnitude of the tensors from that step up to the next row's)."""
    nonfinite_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonfinite:
    """A tensor that held NaN or infinity, in the first step where it did; in the order in which they were computed."""

    step: int
    kind: Kind
    name: str
    type: str
    state: State
    line: str = ""
    scaled: bool = False
    """A gradient of a loss that a loss scaler has scaled: the scaler looks for infinities and skips the step."""
    watched: bool = False
    """The ops of that step were watched, or those of a step soon after in which it happened again."""
    op: str = ""
    """Op that made a non-finite value from finite ones; empty if none did in a watched step."""
    op_line: str = ""
    op_module: str = ""
    op_step: int | None = None
    op_dtype: str = ""
    """dtype of the result; empty if unknown."""
    op_state: State | None = None
    """State of the result; null without ``op``."""


Loss = Literal["rounding", "cancellation", "update"]
"""``rounding``: a reduction whose result is farther from that of float64 than one rounding is. ``cancellation``: the
difference of two reductions, nearly equal. ``update``: of a parameter, too small to change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionLoss:
    """A value of 16 bits that lost precision, in one of the steps whose ops were watched."""

    how: Loss
    step: int
    op: str
    module: str
    line: str
    dtype: str
    terms: int
    """Length of the reduction; of updates elements that should have changed, in all steps whose ops were watched."""
    error: float
    """Relative to the result, as the norm of the difference; of an update the share of elements that did not change."""


ProductKind = Literal["forward", "input gradient", "weight gradient", "gradient"]
"""``gradient``: a product of the backward pass without a weight, as in attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeLoss:
    """Loss of a product whose factors are rounded by a recipe, simulated on some of its rows."""

    recipe: str
    error: float
    """Norm of the difference over the norm of the product, the largest of the measured steps."""
    bias: float
    """Projection of the difference on the product: -0.1 makes results 10 % smaller."""
    overflow: float
    """Share of the factors' nonzero values that saturate."""
    underflow: float
    """Share of the factors' nonzero values that become 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product of matrices: (batch, rows, terms) by (batch, terms, columns)."""

    kind: ProductKind
    name: str
    """Module whose weight it is, or the weight itself (JAX); of others the module or scope."""
    op: str
    line: str
    dtype: str
    batch: int
    rows: int
    columns: int
    terms: int
    calls: int
    """Calls per measured step."""
    steps: int
    """Steps in which it was measured."""
    last_step: int
    losses: tuple[RecipeLoss, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepValues:
    """Values of a step besides its tensors."""

    step: int
    loss: float | None = None
    """Loss of the last backward pass, not scaled; ``None`` if there was no backward pass or it is not finite."""
    gradient_norm: float | None = None
    """Over all parameters of the optimizers that stepped."""
    scale: float | None = None
    """Scale of the loss scaler at the end of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Everything of one process."""

    schema: str = NUMERICS_SCHEMA
    framework: str
    tensors: tuple[TensorStatistics, ...]
    tensors_left: int
    nonfinite: tuple[Nonfinite, ...]
    losses: tuple[PrecisionLoss, ...]
    reductions: int
    """16-bit reductions, each line of each module once, and 16-bit parameters whose updates were examined."""
    steps: tuple[StepValues, ...]
    steps_seen: int
    scale_halved: tuple[int, ...]
    """Steps at whose end the loss scale was smaller than before."""
    watched: tuple[int, ...]
    """Steps whose ops were watched."""
    notes: tuple[str, ...] = ()
    products: tuple[Product, ...] = ()
    """Products of matrices with the losses of narrower formats; empty in older recordings."""


def dump_numerics(numerics: Numerics) -> bytes:
    """Return gzipped JSON; ``ValueError`` for numbers that are not finite."""
    text = json.dumps(asdict(numerics), separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode(), 1, mtime=0)


def numerics_of(trace: Trace) -> Numerics | None:
    """The numerics of a trace; ``None`` if none were recorded."""
    numerics: Numerics | None = trace.documents.get("numerics")
    return numerics


def load_numerics(path: Path) -> Numerics:
    """The numerics in a file; ``DataError`` if it is missing, too large or corrupt."""
    from perfscope.model.documents.bounded_json import read_document
    from perfscope.model.errors import DataError

    numerics = read_document(path, Numerics, NUMERICS_SCHEMA, what="numerics", most_bytes=MOST_BYTES)
    if any(len(tensor.formats) != len(FORMATS) for tensor in numerics.tensors):
        raise DataError(f"{path}: not numerics: counts are not of {len(FORMATS)} formats")
    return numerics
