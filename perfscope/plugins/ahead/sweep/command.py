"""``perfscope compile --sweep`` and ``--fit``: variants of one program, compiled and compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from perfscope.commands.options import STDOUT, announce, screen, write_answers
from perfscope.model.errors import DATA_UNREADABLE, DONE
from perfscope.plugins.ahead.setup import need_compilers

if TYPE_CHECKING:
    from perfscope.analyzers.devices import Target
    from perfscope.plugins.ahead.request import Request
    from perfscope.plugins.ahead.sweep.document import Sweep, SweptVariant

    RequestFor = Callable[[tuple[str, ...], Target, str | None], Request]

VARIANTS = "variants"
"""Folder of a sweep that holds the run folders."""
KEPT = "variant.json"
"""In a variant's run folder: its key, so that another sweep finds it."""
MOST_SEARCHED = 5_000
"""Run folders of earlier sweeps that are looked at."""


class SweepOptions(Struct, frozen=True, kw_only=True):
    """The options of a sweep on the command line."""

    sweeps: tuple[str, ...]
    words: tuple[str, ...]
    """Script or module, and its arguments."""
    module: bool
    target: str
    memory: str | None
    output: Path
    name: str | None
    jobs: int | None
    host_memory_bytes: int | None
    json_file: str | None
    html_file: str | None
    again: bool
    """Compile all of it, also what an earlier sweep has."""
    quiet: bool
    fit: str | None = None
    """A range of sizes, besides the swept options, in which the largest that fits is searched."""


def compile_sweep(options: SweepOptions, request_for: RequestFor) -> int:
    """Compile all variants, write the sweep's folder, print its table; the exit code.

    ``request_for``: makes the request to `compile_program` for arguments, a target and a checkpoint policy. The exit
    code is 4 if no variant was compiled. On an interrupt all finished variants are written and printed, and it
    is raised again.
    """
    sweep = _Sweep(options, request_for)
    try:
        sweep.run()
    finally:
        sweep.end()
    return DONE if any(point is not None and point.state != "failed" for point in sweep.points) else DATA_UNREADABLE


class _Sweep:
    """One sweep under way, in a new folder."""

    def __init__(self, options: SweepOptions, request_for: RequestFor) -> None:
        from perfscope.model.documents.run_folders import create
        from perfscope.plugins.ahead.sweep.axes import fit_axis, parse_axes, variants

        axes = parse_axes(options.sweeps)
        self.options, self._request_for = options, request_for
        self.searched = None if options.fit is None else fit_axis(options.fit, axes)
        self.axes = axes if self.searched is None else (*axes, self.searched)
        self.variants = variants(self.axes, options.words)
        self.points: list[SweptVariant | None] = [None] * len(self.variants)
        self.notes: list[str] = []
        self._requests: dict[int, Request] = {}
        self._keys: dict[int, str] = {}
        self._sources: str | None = None
        self._wanted: list[int] = []
        """Variants that are or were to be compiled; of a search few of all."""
        sizes = 1 if self.searched is None else len(self.searched.values)
        need_compilers([self._request(number) for number in range(0, len(self.variants), sizes)])
        self.name = options.name or Path(options.words[0]).name.removesuffix(".py")
        kind = "sweep" if self.searched is None else "fit"
        self.folder = create(options.output, f"{self.name}-{kind}", latest=False)
        self.created_utc = datetime.now(UTC).isoformat(timespec="seconds")

    def run(self) -> None:
        """Compile all variants, or those that a search needs."""
        from perfscope.plugins.ahead.common.build_key import sources_digest

        (self.folder / VARIANTS).mkdir()
        self._sources = sources_digest(self.options.words, module=self.options.module)
        if self._sources is None:
            self.notes.append("no earlier sweep was looked at: the program's folder is too large to see changes in")
        if self.searched is None:
            self._compile(range(len(self.variants)))
        else:
            self._search(len(self.searched.values))

    def _search(self, sizes: int) -> None:
        """Halve the sizes of each combination of the rest until the largest that fits is known."""
        from perfscope.plugins.ahead.sweep.axes import Bisection, max_compilations

        self.notes.append(
            f"of {sizes:,} sizes up to {max_compilations(sizes)} were compiled, halving what was left; peaks need not "
            "grow evenly, so of sizes that are not in the table nothing is claimed"
        )
        lines = {begin: Bisection(sizes) for begin in range(0, len(self.variants), sizes)}
        while tries := {begin: index for begin, line in lines.items() if (index := line.next()) is not None}:
            self._compile([begin + index for begin, index in tries.items()])
            for begin, index in tries.items():
                point = self.points[begin + index]
                state = None if point is None else point.state
                lines[begin].record(index, {"fits": True, "does not fit": False}.get(state or ""))

    def _request(self, number: int) -> Request:
        from perfscope.analyzers.devices import parse_target
        from perfscope.plugins.ahead.sweep.axes import is_reserved

        if number not in self._requests:
            variant, options = self.variants[number], self.options
            target = parse_target(variant.value("target") or options.target, variant.value("memory") or options.memory)
            policy = variant.value("checkpoint") if is_reserved("checkpoint", options.words) else None
            self._requests[number] = self._request_for(variant.arguments, target, policy)
        return self._requests[number]

    def _compile(self, numbers: Sequence[int]) -> None:
        """Take what an earlier sweep has, and compile the rest."""
        from perfscope.plugins.ahead.common.build_key import variant_key
        from perfscope.plugins.ahead.sweep.pool import Job, run_jobs

        self._wanted += numbers
        root = self.folder / VARIANTS
        if self._sources is not None:
            self._keys |= {number: variant_key(self._request(number), self._sources) for number in numbers}
        keys = {self._keys[number] for number in numbers if number in self._keys}
        kept = {} if self.options.again else kept_variants(self.options.output, keys)
        left = []
        for number in numbers:
            earlier = kept.get(self._keys.get(number, ""))
            if earlier is None:
                left.append(number)
            else:
                self._judge(number, earlier, reused=True)
        jobs = [
            Job(request=self._request(number), root=str(root), settings=dict(self.variants[number].settings))
            for number in left
        ]
        self._write()
        if jobs:
            run_jobs(
                jobs,
                lambda index, outcome: self._ended(left[index], outcome),
                most_at_once=self.options.jobs,
                memory_bytes=self.options.host_memory_bytes,
            )

    def end(self) -> None:
        """Write all faces, and print the table."""
        from perfscope.dashboards.report import write
        from perfscope.model.untrusted_text import sanitize
        from perfscope.plugins.ahead.sweep import sections as sweep_formats
        from perfscope.plugins.ahead.sweep.document import dump

        document = self._write()
        page = sweep_formats.render_html(document)
        write(self.folder / "sweep.html", page)
        options = self.options
        answers = ((options.json_file, lambda: dump(document).decode()), (options.html_file, lambda: page))
        write_answers(answers, quiet=options.quiet)
        if not options.quiet and options.json_file != STDOUT:
            text = sweep_formats.render_text(document, **screen(sys.stdout))
            click.echo(text, nl=False, color=True)
            click.echo(f"\n  {sanitize(str(self.folder))}: sweep.html has the picture, {VARIANTS}/ the programs")

    def _ended(self, number: int, outcome: SweptVariant) -> None:
        from msgspec.structs import replace

        from perfscope.model.untrusted_text import sanitize
        from perfscope.plugins.ahead.sweep.evaluate import exceeds_memory, required_bytes

        if outcome.state == "compiled":
            self._judge(number, self.folder / VARIANTS / outcome.folder, outcome=outcome)
        else:
            refused = exceeds_memory(outcome.reason)
            self.points[number] = replace(
                outcome, state="does not fit" if refused else "failed", reason=outcome.reason[:400],
                peak_bytes=required_bytes(outcome.reason) if refused else None,
                memory_bytes=self._request(number).target.machine.memory_bytes,
                folder=f"{VARIANTS}/{outcome.folder}" if outcome.folder else "",
            )  # fmt: skip
        self._write()
        point = self.points[number]
        if point is not None:
            done = sum(point is not None for point in self.points)
            of = f"{done} of {len(self.points)}" if self.searched is None else f"{done}"
            announce(f"{of}: {sanitize(point.words())}: {sanitize(_point_words(point), 200)}", quiet=self.options.quiet)

    def _judge(self, number: int, folder: Path, *, outcome: SweptVariant | None = None, reused: bool = False) -> None:
        from msgspec.structs import replace

        from perfscope.plugins.ahead.sweep.evaluate import evaluate_variant

        point = evaluate_variant(folder, dict(self.variants[number].settings))
        where = Path(VARIANTS) / folder.name
        if reused:  # in the folder of an earlier sweep
            where = Path("..") / folder.resolve().relative_to(self.folder.resolve().parent)
        self.points[number] = replace(
            point, folder=str(where), reused=reused, seconds_to_compile=outcome and outcome.seconds_to_compile,
            host_bytes=None if outcome is None else outcome.host_bytes,
        )  # fmt: skip
        key = self._keys.get(number)
        if not reused and key is not None and point.state in ("fits", "does not fit", "compiled"):
            keep_variant(folder, key)

    def _write(self) -> Sweep:
        from perfscope.model.files import write_atomically
        from perfscope.model.untrusted_text import scrub_command
        from perfscope.plugins.ahead.sweep.assemble import sweep_document
        from perfscope.plugins.ahead.sweep.document import FILE, SweptVariant, dump
        from perfscope.plugins.ahead.sweep.front import Swept

        numbers = sorted(self._wanted) if self.searched is not None else range(len(self.variants))
        points = [
            point if (point := self.points[number]) is not None
            else SweptVariant(settings=dict(self.variants[number].settings), state="not reached")
            for number in numbers
        ]  # fmt: skip
        tried = {point.settings[self.axes[-1].name] for point in points}
        swept = [
            Swept(
                name=axis.name, kind=axis.kind,
                values=tuple(value for value in axis.values if axis is not self.searched or value in tried),
            )
            for axis in self.axes
        ]  # fmt: skip
        command = ("-m", *self.options.words) if self.options.module else self.options.words
        notes = [*self.notes, *dict.fromkeys(text for request in self._requests.values() for text in _assumed(request))]
        document = sweep_document(
            swept, points, name=self.name, command=scrub_command(command), created_utc=self.created_utc, notes=notes
        )
        write_atomically(self.folder / FILE, dump(document), durable=False)
        return document


def _point_words(point: SweptVariant) -> str:
    from perfscope.model.units import format_bytes, format_ns

    if point.state == "failed":
        return f"failed: {point.reason}"
    parts = []
    if point.step_low_ns is not None and point.step_high_ns is not None:
        parts.append(f"{format_ns(point.step_low_ns)} to {format_ns(point.step_high_ns)} per step")
    if point.peak_bytes is not None:
        parts.append(format_bytes(point.peak_bytes))
    if point.state == "does not fit":
        parts.append("does not fit")
    return ", ".join(parts) or point.state


def keep_variant(folder: Path, key: str) -> None:
    """Let later sweeps and plans find the run folder of a variant by its key."""
    from perfscope.model.files import write_atomically

    text = json.dumps({"schema": "perfscope.sweep.variant/1", "key": key}).encode()
    write_atomically(folder / KEPT, text, durable=False)


def _assumed(request: Request) -> tuple[str, ...]:
    assumptions = request.target.machine.description.get("assumptions")
    return tuple(str(assumption) for assumption in assumptions) if isinstance(assumptions, list) else ()


def kept_variants(root: Path, keys: set[str]) -> dict[str, Path]:
    """Run folders of earlier sweeps by key, the latest of each; only for ``keys``."""
    import msgspec

    result: dict[str, Path] = {}
    if not keys:
        return result
    places = sorted(root.glob(f"*/{VARIANTS}/*/{KEPT}"), reverse=True)
    for path in places[:MOST_SEARCHED]:
        try:
            document = msgspec.json.decode(path.read_bytes())
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            continue
        key = document.get("key") if isinstance(document, dict) else None
        if isinstance(key, str) and key in keys:
            result.setdefault(key, path.parent)
    return result
