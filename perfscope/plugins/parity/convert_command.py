"""``perfscope convert``: the weights of a checkpoint, as another model has them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfscope.commands.options import announce, quiet_option, verbose_option
from perfscope.model.errors import DONE, DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.plugins.parity.checkpoints import Checkpoint
    from perfscope.plugins.parity.document import Mapping, Weight
    from perfscope.plugins.parity.translation import MisfitError, Translation

GB = 10**9


@click.command()
@click.argument("checkpoint")
@click.argument("model")
@click.option(
    "--to",
    "target",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the weights: NAME.safetensors, NAME.safetensors.index.json (several files), NAME.pt (PyTorch), or a "
    "folder (Orbax). Without it nothing is written, and what would be is checked.",
)
@click.option(
    "--map", "maps", multiple=True, metavar="A=B|FILE", help="A weight of A is this one of B; or a file of --write-map."
)
@click.option(
    "--heads-a", metavar="Q/KV", help="CHECKPOINT: fused query, key and value alternate per head, in so many."
)
@click.option("--heads-b", metavar="Q/KV", help="The same of MODEL.")
@click.option(
    "--write-map", metavar="FILE", type=click.Path(path_type=Path), help="Write which weight went where, as JSON."
)
@click.option(
    "--dtype",
    type=click.Choice(("float64", "float32", "bfloat16", "float16")),
    help="Round to this dtype. [as it is stored]",
)
@click.option(
    "--shard-size",
    metavar="GB",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="Most gigabytes per file of an index.",
)
@quiet_option
@verbose_option
def convert(checkpoint: str, model: str, target: Path | None, **settings: Any) -> int:
    """Convert the weights of CHECKPOINT into those of MODEL.

    CHECKPOINT is a safetensors file, an index of several, a file of torch.save, a folder with one of these, or the
    folder of an Orbax checkpoint; or `file.py:function`, as for `perfscope parity`, whose model's own weights are
    converted. MODEL is `file.py:function`, or a checkpoint with the wanted names and shapes.

    `perfscope parity CHECKPOINT_MODEL MODEL` then shows that both compute the same.
    """
    from perfscope.model.files import write_atomically
    from perfscope.model.units import format_bytes
    from perfscope.plugins.parity.checkpoints import check_target, open_checkpoint, stored_bytes, write_checkpoint
    from perfscope.plugins.parity.checkpoints.conversion import Conversion
    from perfscope.plugins.parity.heads import with_heads
    from perfscope.plugins.parity.maps import chosen, dump_map
    from perfscope.plugins.parity.translation import MisfitError, translate

    if target is not None:
        check_target(target)
    wanted = chosen(settings["maps"])
    # Processes of models start before a checkpoint is opened: JAX, which Orbax imports, has threads.
    models = {name: _described(name, values=values) for name, values in ((model, False), (checkpoint, True))
              if _is_model(name)}  # fmt: skip
    source, template = (models.get(name) or open_checkpoint(Path(name)) for name in (checkpoint, model))
    of_source = with_heads(source.weights, settings["heads_a"], "a")
    of_template = with_heads(template.weights, settings["heads_b"], "b")
    try:
        translation = translate(
            of_source,
            of_template,
            a_is_torch=source.torch,
            b_is_torch=template.torch,
            options=wanted.pairs,
            layouts_of=wanted.layouts,
        )
    except MisfitError as error:
        _list_misfits(error)
        raise DataError(f"{checkpoint}: {_counts(error)}; name counterparts with --map A_NAME=B_NAME") from error
    conversion = Conversion(source, translation, settings["dtype"])
    specs = conversion.specs(template.weights)
    if settings["write_map"] is not None:
        write_atomically(settings["write_map"], dump_map(translation.mappings()))
    files: list[Path] = []
    if target is not None:
        shard_bytes = int(settings["shard_size"] * GB)
        files = write_checkpoint(target, specs, conversion.make, torch=template.torch, shard_bytes=shard_bytes)
    total = sum(map(stored_bytes, specs))
    done = f"to {files[0]}" if files else "nothing written (--to FILE)"
    click.echo(f"{len(specs)} weights, {format_bytes(total)}: {done}")
    _describe(translation, source, verbose=settings["verbose"], quiet=settings["quiet"])
    return DONE


def _is_model(name: str) -> bool:
    if name.endswith(".py"):
        raise UsageError(f"{name}: give file.py:function")
    return ":" in name and not Path(name).exists()


def _described(name: str, *, values: bool) -> Checkpoint:
    """The weights of a user's model, with their ``values`` if wanted."""
    from tempfile import TemporaryDirectory

    from perfscope.plugins.parity.checkpoints import Checkpoint, narrowed
    from perfscope.plugins.parity.process import SideProcess

    with TemporaryDirectory(prefix="perfscope-") as folder:
        process = SideProcess(name, Path(folder))
        try:
            weights, arrays = process.describe(values=values)
        finally:
            process.close()
    stored = {weight.name: narrowed(arrays[weight.name], weight.dtype) for weight in weights if values}
    return Checkpoint(weights=tuple(weights), arrays=stored, torch=process.framework == "torch")


def _list_misfits(error: MisfitError) -> None:
    """All weights without a counterpart, a line each, with the most alike of the other side."""
    from perfscope.model.untrusted_text import sanitize
    from perfscope.plugins.parity.names import likeness, parse_name

    def line(weight: Weight, others: Sequence[Weight]) -> str:
        name = parse_name(weight.name)
        near = max(others, key=lambda other: likeness(name, parse_name(other.name)), default=None)
        alike = near is not None and likeness(name, parse_name(near.name)) >= 1
        return _shaped(weight) + (f"; the most alike is {_shaped(near)}" if near is not None and alike else "")

    for title, weights, others in (("CHECKPOINT", error.a, error.b), ("MODEL", error.b, error.a)):
        for weight in weights:
            click.echo(sanitize(f"only in {title}: {line(weight, others)}", 500), err=True)


def _counts(error: MisfitError) -> str:
    return f"{len(error.a)} weights do not fit the model, and {len(error.b)} of the model are not in it"


def _shaped(weight: Weight) -> str:
    return f"{weight.name} {list(weight.shape)} {weight.dtype}"


def _describe(translation: Translation, source: Checkpoint, *, verbose: bool, quiet: bool) -> None:
    from perfscope.model.untrusted_text import sanitize

    mappings: tuple[Mapping, ...] = translation.mappings()
    if verbose:
        for mapping in mappings:
            line = f"{mapping.a} -> {mapping.b} ({mapping.layout}, by {mapping.by})"
            click.echo(f"  {sanitize(line, 1000)}")
    by_order = Counter(mapping.by for mapping in mappings)["order"]
    if by_order:
        announce(f"{by_order} weights matched by order and shape, because their names differ: compare them with "
                 "perfscope parity", quiet=quiet)  # fmt: skip
    if source.ignored:
        announce(f"{len(source.ignored)} arrays that are not floating-point were left out", quiet=quiet)
