"""``perfscope plan``: the meshes of a model on a machine, by their modelled time and memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfscope.commands.options import (
    STDOUT,
    announce,
    output_folder_option,
    parse_time,
    quiet_option,
    screen,
    verbose_option,
    write_answers,
)
from perfscope.commands.run import TARGET, RunCommand
from perfscope.model.errors import DONE, UsageError
from perfscope.plugins.plan.options import comma, fixed_axes, share

if TYPE_CHECKING:
    from perfscope.plugins.plan.compiled import Wanted
    from perfscope.plugins.plan.document import Plan
    from perfscope.plugins.plan.evaluate import Problem
    from perfscope.plugins.plan.search import Space

BUDGET = "15m"


class PlanCommand(RunCommand):
    """As `compile`: the program and its arguments come last, or there is none."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line names the two ways to use it."""
        return ["[OPTIONS] --model config.json | [OPTIONS] script.py ARGS... | -m module ARGS..."]


@click.command(cls=PlanCommand, epilog="docs/plan.md has the formulas, their sources, and how published runs compare.")
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
@click.option("--checkpoint", metavar="LIST", help="Checkpoint policies. [none,dots,full; a program: its own]")
@click.option("--schedule", default="1f1b,interleaved,zb-h1", show_default=True, metavar="LIST",
              help="Pipelines: gpipe, 1f1b, interleaved, zb-h1, zb-h2.")  # fmt: skip
@click.option("--micro-batch", metavar="LIST", help="Sequences of one forward. [powers of two up to 16]")
@click.option("--precision", default="bfloat16", show_default=True, metavar="LIST", help="bfloat16, fp8, float32.")
@click.option("--offload", default="none", show_default=True, metavar="LIST", help="none, optimizer, activations.")
@click.option("--price", type=click.FloatRange(min=0), metavar="AMOUNT", help="Price of one device for an hour.")
@click.option("--budget", default=BUDGET, show_default=True, metavar="TIME", help="Longest search.")
@click.option("--mesh-flag", metavar="TEMPLATE", help="Program: its flags, '--data {data} --fsdp {fsdp}'.")
@click.option(
    "--axes",
    default="data,fsdp,tensor",
    show_default=True,
    metavar="LIST",
    help="Program without --mesh-flag: axes that perfscope.mesh() or PERFSCOPE_MESH gives it.",
)
@click.option("--jobs", type=click.IntRange(1, 256), metavar="N", help="Program: compilations at once. [cores, memory]")
@output_folder_option("the compiled meshes")
@click.option("--json", "json_file", metavar="FILE", help="Write the plan as JSON (- for stdout, alone).")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write it as Markdown (- for stdout, alone).")
@click.option("--html", "html_file", metavar="FILE", help="Write it as a page with the picture.")
@quiet_option
@verbose_option
@click.pass_context
def plan(
    context: click.Context,
    *,
    model: str | None,
    target: str,
    memory: str | None,
    topology: str | None,
    global_batch: int | None,
    sequence: int | None,
    memory_headroom: str,
    meshes: tuple[str, ...],
    checkpoint: str | None,
    schedule: str,
    micro_batch: str | None,
    precision: str,
    offload: str,
    price: float | None,
    budget: str,
    mesh_flag: str | None,
    axes: str,
    jobs: int | None,
    output: Path,
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

    words, kind = context.meta[TARGET]
    headroom = share("--memory-headroom", memory_headroom)
    if words:
        wanted = _wanted(
            words, kind, target, memory, mesh_flag=mesh_flag, axes=axes, meshes=meshes, checkpoint=checkpoint,
            headroom=headroom, output=output, budget=budget, jobs=jobs, price=price,
            tokens=None if global_batch is None or sequence is None else global_batch * sequence,
        )  # fmt: skip
        from perfscope.plugins.plan.compiled import compile_plan

        document = compile_plan(wanted, lambda text: announce(text, quiet=quiet))
        _show(document, json_file, markdown_file, html_file, quiet=quiet, verbose=verbose)
        return DONE
    if model is None:
        raise UsageError("nothing to plan: give --model config.json, or a program")
    space = Space(
        fixed=fixed_axes(meshes),
        policies=comma("--checkpoint", checkpoint or "none,dots,full", POLICIES),
        schedules=comma("--schedule", schedule, SCHEDULES),
        precisions=comma("--precision", precision, PRECISIONS),
        offloads=comma("--offload", offload, OFFLOADS),
        micro_batches=_numbers(micro_batch),
    )
    problem = _problem(model, target, memory, topology, global_batch, sequence)
    _check_precisions(problem, space)
    seconds = parse_time("--budget", budget)
    found = search(problem, space, headroom, budget_s=seconds, progress=lambda text: announce(text, quiet=quiet))
    document = plan_document(problem, found, Chosen(headroom=headroom, price=price))
    _show(document, json_file, markdown_file, html_file, quiet=quiet, verbose=verbose)
    return DONE


def _wanted(
    words: tuple[str, ...],
    kind: str,
    target: str,
    memory: str | None,
    *,
    mesh_flag: str | None,
    axes: str,
    meshes: tuple[str, ...],
    checkpoint: str | None,
    headroom: float,
    output: Path,
    budget: str,
    jobs: int | None,
    price: float | None,
    tokens: int | None,
) -> Wanted:
    from perfscope.analyzers.devices import parse_target
    from perfscope.plugins.plan.candidate import AXES, POLICIES
    from perfscope.plugins.plan.compiled import Wanted

    if kind == "command":
        raise UsageError(f"{words[0]}: a plan compiles a Python program: give script.py or -m module")
    return Wanted(
        words=words, module=kind == "module", template=mesh_flag, axes=comma("--axes", axes, AXES),
        target=parse_target(target, memory), fixed=fixed_axes(meshes),
        policies=(None,) if checkpoint is None else comma("--checkpoint", checkpoint, POLICIES), headroom=headroom,
        output=output, budget_s=parse_time("--budget", budget), jobs=jobs, tokens=tokens, price=price,
    )  # fmt: skip


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
