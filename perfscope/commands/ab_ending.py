"""What a finished A/B comes to: its document, its gates and exit code, and where it is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.commands.compare_outputs import Outputs, show_screen, write_outputs
from perfscope.model.errors import DONE, GATE_NOT_MET, INCONCLUSIVE

if TYPE_CHECKING:
    from perfscope.analyzers.compare.ab_judge import AbResult
    from perfscope.analyzers.compare.ab_profiles import Profiles
    from perfscope.model.documents.ab import AbState, Launch, Pairs

RESULT_FILE = "result.json"


def end(
    result: AbResult,
    found: Pairs,
    state: AbState,
    *,
    fail_on: Sequence[str],
    strict: bool,
    outputs: Outputs,
    quiet: bool,
    verbose: bool,
) -> int:
    """Compare the profiled launches, write the document everywhere it was asked for, show it; the exit code."""
    from perfscope.analyzers.compare.ab_profiles import compare_profiles
    from perfscope.dashboards.reports import ab_document, compare_document, compare_json, write
    from perfscope.model.untrusted_text import sanitize

    pairs = [(_folder(state, base), _folder(state, head)) for base, head in found.profiled]
    lost = [f"profiled launch of {one.arm}: {one.problem}" for one in found.lost]
    profiles = compare_profiles(pairs, lost)
    failed = tuple(gates_not_met(result, profiles, fail_on))
    held = ab_document.document(result, state.plan, profiles, failed=failed, gates=fail_on)
    write(state.directory / RESULT_FILE, compare_json.as_text(held))
    if not write_outputs(held, outputs, quiet=quiet):
        show_screen(compare_document.of(held), failed, verbose=verbose)
        if not quiet:
            _say(f"launches and runs kept in {sanitize(str(state.directory), 400)}")
    if failed:
        return GATE_NOT_MET
    return INCONCLUSIVE if strict and any(inconclusive(result, profiles)) else DONE


def gates_not_met(result: AbResult, profiles: Profiles, fail_on: Sequence[str]) -> Iterator[str]:
    """Why a build must fail, one line each: of the launches, and of what the profiled ones say exactly."""
    gated = {metric.name: metric.verdict for metric in result.gating if metric.gates}
    if "regression" in fail_on:
        yield from (f"{name}: regression" for name, verdict in gated.items() if verdict == "regression")
    if "inconclusive" in fail_on:
        yield from (f"{name}: inconclusive" for name in inconclusive(result, profiles))
    if profiles.comparison is not None:
        exact = [one for one in fail_on if one != "inconclusive"]
        yield from (line for line in profiles.comparison.gates(exact) if line.partition(": ")[0] not in gated)


def inconclusive(result: AbResult, profiles: Profiles) -> Iterator[str]:
    """Metrics that could not be judged; the time of a profiled pair was not meant to be."""
    yield from (metric.name for metric in result.gating if metric.verdict == "inconclusive")
    if profiles.comparison is not None:
        for one in profiles.comparison.exact:
            if not one.neutral and one.result.verdict == "inconclusive":
                yield one.result.name


def _folder(state: AbState, launch: Launch) -> Path:
    assert launch.run is not None
    return state.profiled / launch.run


def _say(line: str) -> None:
    print(f"perfscope: {line}", file=sys.stderr, flush=True)
