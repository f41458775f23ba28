"""``perfscope plan``: the meshes of a model on a machine, by their modelled time and memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from perfscope.model.errors import DONE, DataError, UsageError
from perfscope.plugins.plan.options import comma, fixed_axes, share

if TYPE_CHECKING:
    from perfscope.analyzers.devices import Target
    from perfscope.plugins.plan.calibrate import Narrowed
    from perfscope.plugins.plan.compiled import Wanted
    from perfscope.plugins.plan.document import Plan
    from perfscope.plugins.plan.evaluate import Problem
    from perfscope.plugins.plan.formats import Configuration
    from perfscope.plugins.plan.search import Space

BUDGET = "15m"


class PlanCommand(RunCommand):
    """As `compile`: the program, if any, and its arguments come last."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage line names the two ways to use it."""
        return ["[OPTIONS] --model config.json | [OPTIONS] script.py ARGS... | -m module ARGS..."]


@click.command(cls=PlanCommand, epilog="docs/plan.md has the formulas, their sources, and how published runs compare.")
@click.option("--model", metavar="FILE|SIZES", help="config.json of the model, or layers=80,hidden=8192,heads=64,...")
@click.option("--target", metavar="DEVICES", help="h100x64, mi300x8, v5e:16x16 or a TOML file of your own.")
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
@click.option("--config", metavar="FILE", help="torchtitan (TOML), MaxText or accelerate (YAML): sizes and batch.")
@click.option("--write-config", metavar="FILE", help="Write --config with the mesh of the first candidate.")
@click.option("--calibrate", metavar="RUN", help="A recording of the same devices: narrow the assumptions by it.")
@click.option("--measure", metavar="FILE", help="Write a script that measures what decides between the meshes.")
@click.option("--check", "checked", metavar="RUN", help="Lay a run next to its plan (--plan FILE, --mesh selects).")
@click.option("--plan", "plan_file", metavar="FILE", help="With --check: the plan as --json wrote it.")
@click.option("--json", "json_file", metavar="FILE", help="Write the plan as JSON (- for stdout, alone).")
@click.option("--markdown", "markdown_file", metavar="FILE", help="Write it as Markdown (- for stdout, alone).")
@click.option("--html", "html_file", metavar="FILE", help="Write it as a page with the picture.")
@quiet_option
@verbose_option
@click.pass_context
def plan(context: click.Context, /, **asked: Any) -> int:
    """Search the meshes, checkpoint policies and micro-batches of a model for a machine that is not here.

    Times are modelled ranges. A mesh is called faster than another only if it is under every combination of the
    assumptions; for the others the measurement that decides is named.
    """
    if asked["checked"] is not None:
        return _check(asked)
    if asked["target"] is None:
        raise UsageError("--target is missing: give the devices, e.g. h100x64")
    words, kind = context.meta[TARGET]
    if words:
        from perfscope.plugins.plan.compiled import compile_plan

        wanted = _wanted(words, kind, asked)
        _show(compile_plan(wanted, lambda text: announce(text, quiet=asked["quiet"])), asked)
        return DONE
    document = _searched(asked)
    _show(document, asked)
    return DONE


def _searched(asked: dict[str, Any]) -> Plan:
    """Search a model by its formulas; write the configuration of the best mesh if asked for."""
    from perfscope.dashboards.report import write
    from perfscope.plugins.plan.assemble import Chosen, plan_document
    from perfscope.plugins.plan.candidate import OFFLOADS, POLICIES, PRECISIONS, SCHEDULES
    from perfscope.plugins.plan.formats import read_configuration, written
    from perfscope.plugins.plan.search import Space, search

    configuration = None if asked["config"] is None else read_configuration(asked["config"])
    if asked["write_config"] is not None and configuration is None:
        raise UsageError("--write-config: needs --config, the file to write again")
    space = Space(
        fixed=fixed_axes(asked["meshes"]),
        policies=comma("--checkpoint", asked["checkpoint"] or "none,dots,full", POLICIES),
        schedules=comma("--schedule", asked["schedule"], SCHEDULES),
        precisions=comma("--precision", asked["precision"], PRECISIONS),
        offloads=comma("--offload", asked["offload"], OFFLOADS),
        micro_batches=_numbers(asked["micro_batch"]),
    )
    headroom, seconds = share("--memory-headroom", asked["memory_headroom"]), parse_time("--budget", asked["budget"])
    problem, narrowed = _problem(asked, configuration)
    _check_precisions(problem, space)
    found = search(
        problem, space, headroom, budget_s=seconds, progress=lambda text: announce(text, quiet=asked["quiet"])
    )
    notes = tuple(one.words(asked["calibrate"]) for one in narrowed)
    by = asked["calibrate"] if narrowed else ""
    document = plan_document(
        problem, found, Chosen(headroom=headroom, price=asked["price"], calibrated_by=by, notes=notes)
    )
    if asked["measure"] is not None:
        from perfscope.plugins.plan.measure import measure_script

        file = Path(asked["measure"])
        write(file, measure_script(document, problem.model, problem.target.node_devices, file.name))
        announce(f"wrote {file}", quiet=asked["quiet"])
    if configuration is not None and asked["write_config"] is not None:
        text = written(configuration, document.candidates[0], problem.target.count, problem.global_batch)
        write(asked["write_config"], text)
        announce(f"wrote {asked['write_config']}", quiet=asked["quiet"])
    return document


def _check(asked: dict[str, Any]) -> int:
    """Lay a run next to its plan."""
    from perfscope.analyzers.readers import load_all
    from perfscope.dashboards.report.renderers.text import report_text
    from perfscope.plugins.plan.check import check_report
    from perfscope.plugins.plan.document import load

    if asked["plan_file"] is None:
        raise UsageError("--check: needs the plan, --plan plan.json")
    document, fixed = load(Path(asked["plan_file"])), fixed_axes(asked["meshes"])
    rows = [
        row
        for row in document.candidates
        if all(row.candidate.mesh.sizes[axis] == size for axis, size in fixed.items())
    ]
    if not rows:
        known = "; ".join(row.candidate.mesh.words for row in document.candidates[:4])
        raise UsageError(f"--mesh: the plan has no such mesh; it has {known}")
    traces = load_all(asked["checked"])
    click.echo(report_text(check_report(document, rows[0], traces), **screen(sys.stdout)), nl=False, color=True)
    return DONE


def _wanted(words: tuple[str, ...], kind: str, asked: dict[str, Any]) -> Wanted:
    from perfscope.analyzers.devices import parse_target
    from perfscope.plugins.plan.candidate import AXES, POLICIES
    from perfscope.plugins.plan.compiled import Wanted

    if kind == "command":
        raise UsageError(f"{words[0]}: a plan compiles a Python program: give script.py or -m module")
    other = next(
        (name for name in ("model", "config", "write_config", "topology", "measure") if asked[name] is not None),
        None,
    )
    if other is not None:
        raise UsageError(
            f"--{other.replace('_', '-')}: is for a model that is planned by formulas; {words[0]} is compiled for each "
            "mesh and has its own sizes: give one of the two"
        )
    target = parse_target(asked["target"], asked["memory"])
    checkpoint, batch, sequence = asked["checkpoint"], asked["global_batch"], asked["sequence"]
    return Wanted(
        words=words,
        module=kind == "module",
        template=asked["mesh_flag"],
        axes=comma("--axes", asked["axes"], AXES),
        target=target,
        narrowed=_narrowed(asked["calibrate"], target),
        calibrated_by=asked["calibrate"] or "",
        fixed=fixed_axes(asked["meshes"]),
        policies=(None,) if checkpoint is None else comma("--checkpoint", checkpoint, POLICIES),
        headroom=share("--memory-headroom", asked["memory_headroom"]),
        output=asked["output"],
        budget_s=parse_time("--budget", asked["budget"]),
        jobs=asked["jobs"],
        tokens=batch * sequence if batch and sequence else None,
        price=asked["price"],
    )


def _problem(asked: dict[str, Any], configuration: Configuration | None) -> tuple[Problem, tuple[Narrowed, ...]]:
    from perfscope.analyzers.devices import parse_target
    from perfscope.plugins.plan.assumptions import scenarios
    from perfscope.plugins.plan.decoder import read_decoder
    from perfscope.plugins.plan.evaluate import Problem
    from perfscope.plugins.plan.fabric import read_fabric

    text = asked["target"]
    machine, fabric = read_fabric(asked["topology"], parse_target(text, asked["memory"]))
    model = None if configuration is None else configuration.model
    if asked["model"] is not None:
        model = read_decoder(asked["model"])
    if model is None and configuration is not None and configuration.missing:
        keys = ", ".join(configuration.missing)
        raise DataError(f"--config {configuration.path}: without {keys}, also in its base_config; give --model")
    if model is None:
        raise UsageError("nothing to plan: give --model config.json, a --config with the model, or a program")
    sequence, batch = asked["sequence"], asked["global_batch"]
    if configuration is not None:
        sequence = sequence or configuration.sequence
        batch = batch or configuration.global_batch
        batch = batch or (configuration.per_device and configuration.per_device * machine.count)
    if sequence is None:
        known = "" if model.longest is None else f" (the model allows up to {model.longest:,})"
        raise UsageError(f"--sequence is missing: give the tokens of one sequence{known}")
    if batch is None:
        raise UsageError("--global-batch is missing: give the sequences of one step")
    if machine.nodes > 1 and machine.network is None:
        raise UsageError(
            f"--target {text}: nothing joins its {machine.nodes} nodes: give network.link and network.cards in a "
            "file, --topology links.toml"
        )
    if machine.count > 1 and not machine.device.link_bandwidth:
        raise UsageError(
            f"--target {text}: the links of {machine.device.name} are unknown: give node.bandwidth_GB_per_s in a "
            "file, --topology links.toml"
        )
    narrowed = _narrowed(asked["calibrate"], machine)
    ends = {one.assumption: (one.low, one.high) for one in narrowed}
    return Problem(
        model=model, target=machine, global_batch=batch, sequence=sequence, scenarios=scenarios(ends), fabric=fabric
    ), narrowed


def _narrowed(run: str | None, target: Target) -> tuple[Narrowed, ...]:
    if run is None:
        return ()
    from perfscope.analyzers.readers import load_all
    from perfscope.plugins.plan.calibrate import narrowed_by

    return narrowed_by(load_all(run), target)


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


def _show(document: Plan, asked: dict[str, Any]) -> None:
    from perfscope.plugins.plan import sections
    from perfscope.plugins.plan.document import dump

    answers = (
        (asked["json_file"], lambda: dump(document).decode()),
        (asked["markdown_file"], lambda: sections.render_markdown(document)),
        (asked["html_file"], lambda: sections.render_html(document)),
    )
    write_answers(answers, quiet=asked["quiet"])
    if not asked["quiet"] and STDOUT not in (file for file, _ in answers):
        text = sections.render_text(document, **screen(sys.stdout), verbose=asked["verbose"])
        click.echo(text, nl=False, color=True)
