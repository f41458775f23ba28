"""``perfscope plan``: the meshes of a model on a machine, by their modelled time and memory."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from perfscope.commands.options import STDOUT, announce, parse_time, quiet_option, screen, verbose_option, write_answers
from perfscope.model.errors import DONE, UsageError
from perfscope.plugins.plan.options import comma, fixed_axes, share

if TYPE_CHECKING:
    from perfscope.plugins.plan.document import Plan
    from perfscope.plugins.plan.evaluate import Problem
    from perfscope.plugins.plan.search import Space

BUDGET = "15m"


@click.command(epilog="docs/plan.md has the formulas, their sources, and how published runs compare.")
@click.option("--model", metavar="FILE|SIZES", help="config.json of the model, or layers=80,hidden=8192,heads=64,...")
@click.option(
    "--target", metavar="DEVICES", required=True, help="h100x64, mi300x8, v5e:16x16 or a TOML file of your own."
)
@click.option("--memory", metavar="SIZE", help="Memory of one device, if it is not the usual size: 40GiB.")
@click.option("--topology", metavar="FILE", help="Links: TOML, nvidia-smi topo -m, or Slurm's topology.conf.")
@click.option("--global-batch", type=click.IntRange(1, 1 << 24), metavar="N", help="Sequences of one step.")
@click.option("--sequence", type=click.IntRange(1, 1 << 24), metavar="N", help="Tokens of one sequence.")
@click.option("--memory-headroom", default="10%", show_default=True, metavar="SHARE", help="Memory to leave free.")
@click.option("--mesh", "meshes", metavar="AXIS=N,...", multiple=True, help="Only this size of an axis: tensor=8.")
@click.option("--checkpoint", default="none,dots,full", show_default=True, metavar="LIST", help="Checkpoint policies.")
@click.option("--schedule", default="1f1b,interleaved,zb-h1", show_default=True, metavar="LIST",
              help="Pipelines: gpipe, 1f1b, interleaved, zb-h1, zb-h2.")  # fmt: skip
@click.option("--micro-batch", metavar="LIST", help="Sequences of one forward. [powers of two up to 16]")
@click.option("--precision", default="bfloat16", show_default=True, metavar="LIST", help="bfloat16, fp8, float32.")
@click.option("--offload", default="none", show_default=True, metavar="LIST", help="none, optimizer, activations.")
@click.option("--price", type=click.FloatRange(min=0), metavar="AMOUNT", help="Price of one device for an hour.")
@click.option("--budget", default=BUDGET, show_default=True, metavar="TIME", help="Longest search.")
@click.option("--json", "json_file", metavar="FILE", help="Write the plan as JSON (- for stdout, alone).")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write it as Markdown (- for stdout, alone).")
@click.option("--html", "html_file", metavar="FILE", help="Write it as a page with the picture.")
@quiet_option
@verbose_option
def plan(
    *,
    model: str | None,
    target: str,
    memory: str | None,
    topology: str | None,
    global_batch: int | None,
    sequence: int | None,
    memory_headroom: str,
    meshes: tuple[str, ...],
    checkpoint: str,
    schedule: str,
    micro_batch: str | None,
    precision: str,
    offload: str,
    price: float | None,
    budget: str,
    json_file: str | None,
    markdown_file: str | None,
    html_file: str | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Search the meshes, checkpoint policies and micro-batches of a model for a machine that is not here.

    Times are modelled ranges. A mesh is called faster than another only if it is under every combination of the
    assumptions; for the others the measurement that decides is named.
    """
    from perfscope.plugins.plan.assemble import Chosen, plan_document
    from perfscope.plugins.plan.candidate import OFFLOADS, POLICIES, PRECISIONS, SCHEDULES
    from perfscope.plugins.plan.search import Space, search

    if model is None:
        raise UsageError("nothing to plan: give --model config.json")
    space = Space(
        fixed=fixed_axes(meshes),
        policies=comma("--checkpoint", checkpoint, POLICIES),
        schedules=comma("--schedule", schedule, SCHEDULES),
        precisions=comma("--precision", precision, PRECISIONS),
        offloads=comma("--offload", offload, OFFLOADS),
        micro_batches=_numbers(micro_batch),
    )
    headroom = share("--memory-headroom", memory_headroom)
    problem = _problem(model, target, memory, topology, global_batch, sequence)
    _check_precisions(problem, space)
    seconds = parse_time("--budget", budget)
    found = search(problem, space, headroom, budget_s=seconds, progress=lambda text: announce(text, quiet=quiet))
    document = plan_document(problem, found, Chosen(headroom=headroom, price=price))
    _show(document, json_file, markdown_file, html_file, quiet=quiet, verbose=verbose)
    return DONE


def _problem(
    model: str, target: str, memory: str | None, topology: str | None, global_batch: int | None, sequence: int | None
) -> Problem:
    from perfscope.analyzers.devices import parse_target
    from perfscope.plugins.plan.assumptions import scenarios
    from perfscope.plugins.plan.decoder import read_decoder
    from perfscope.plugins.plan.evaluate import Problem
    from perfscope.plugins.plan.fabric import read_fabric

    decoder = read_decoder(model)
    if sequence is None:
        known = "" if decoder.longest is None else f" (the model allows up to {decoder.longest:,})"
        raise UsageError(f"--sequence is missing: give the tokens of one sequence{known}")
    if global_batch is None:
        raise UsageError("--global-batch is missing: give the sequences of one step")
    machine, fabric = read_fabric(topology, parse_target(target, memory))
    if machine.nodes > 1 and machine.network is None:
        raise UsageError(
            f"--target {target}: nothing joins its {machine.nodes} nodes: give network.link and network.cards in a "
            "file, --topology links.toml"
        )
    if machine.count > 1 and not machine.device.link_bandwidth:
        raise UsageError(
            f"--target {target}: the links of {machine.device.name} are unknown: give node.bandwidth_GB_per_s in a "
            "file, --topology links.toml"
        )
    return Problem(
        model=decoder,
        target=machine,
        global_batch=global_batch,
        sequence=sequence,
        scenarios=scenarios(),
        fabric=fabric,
    )


def _check_precisions(problem: Problem, space: Space) -> None:
    from perfscope.analyzers.devices import peak_flops

    device = problem.target.device
    for name in space.precisions:
        if peak_flops(device, name) is None:
            raise UsageError(
                f"--precision {name}: {device.name} has no peak of it; it has {', '.join(device.peak_flops)}"
            )


def _numbers(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not part.isdigit() or int(part) < 1), None)
    if wrong is not None:
        raise UsageError(f"--micro-batch {wrong[:20]}: not a number of sequences")
    return tuple(sorted({int(part) for part in parts}))


def _show(
    document: Plan,
    json_file: str | None,
    markdown_file: str | None,
    html_file: str | None,
    *,
    quiet: bool,
    verbose: bool,
) -> None:
    from perfscope.plugins.plan import sections
    from perfscope.plugins.plan.document import dump

    answers = (
        (json_file, lambda: dump(document).decode()),
        (markdown_file, lambda: sections.render_markdown(document)),
        (html_file, lambda: sections.render_html(document)),
    )
    write_answers(answers, quiet=quiet)
    if not quiet and STDOUT not in (json_file, markdown_file, html_file):
        click.echo(sections.render_text(document, **screen(sys.stdout), verbose=verbose), nl=False, color=True)
