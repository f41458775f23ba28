"""Compiled: a directory that `perfscope compile` wrote, programs for a machine that is not there. One trace.

```
20261122-042726-train-7f3a/
  compile.json                                   the manifest: for what, from what, what is not here
  programs/00.jit_step.hlo.pb                    after optimization, with its memory assigned
  programs/00.jit_step.before_optimizations.hlo.pb
  programs/00.jit_step.priority_fusion_dump.txt  GPU: why XLA did not fuse what it did not
  programs/00.jit_step.thunk_sequence.txt        GPU: the launches in order
  programs/00.jit_step.passes.textproto          what each pass of the compiler took
  plans/00.*.json                                PyTorch: what torch.compile would make of it, read by `torch_plan`
```
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perfscope.analyzers.hardware.target import Target
from perfscope.analyzers.hardware.target_described import described_target
from perfscope.analyzers.readers import hlo_proto
from perfscope.analyzers.readers._program import join_programs
from perfscope.analyzers.trace import Trace
from perfscope.profiler import store
from perfscope.profiler.aot.compiled_file import Compiled, load
from perfscope.profiler.errors import DataError

FORMAT = "compiled"
MOST_NAMED = 3
"""Programs that were not compiled and are named; of more the number says enough."""


def sniff(path: Path, head: bytes) -> bool:
    """True for a directory with such a manifest."""
    return path.is_dir() and store.is_compiled(path)


def read(path: Path) -> Trace:
    """The programs and plans of the folder as one trace, with the target they are judged for.

    One that is damaged is left out and said in the source's notes; ``DataError`` if nothing is left, with what the
    manifest says of it.
    """
    manifest = load(path)
    if manifest.framework == "torch":
        from perfscope.analyzers.readers import torch_plan

        trace = torch_plan.read_folder(path, manifest)
    else:
        trace = _programs(path, manifest)
    notes = (*_said(manifest), *trace.source.notes)
    trace.source = replace(trace.source, path=str(path), format=FORMAT, notes=tuple(dict.fromkeys(notes)))
    trace.target = _target(path, manifest)
    trace.checkpoint = None if manifest.checkpoint is None else manifest.checkpoint.policy
    trace.judged_device = manifest.target.device
    return trace


def _programs(path: Path, manifest: Compiled) -> Trace:
    read, problems = [], []
    for program in manifest.programs:
        file = path / program.file
        try:
            if not file.is_file():
                raise DataError(f"{file}: no such file")
            read.append(hlo_proto.read(file))
        except DataError as error:
            problems.append(f"{program.file} is not read: {str(error).removeprefix(f'{file}: ')}")
    if not read:
        raise DataError(f"{path}: {problems[0] if problems else _why_nothing(manifest)}")
    trace = join_programs(read, str(path))
    trace.source = replace(trace.source, notes=(*trace.source.notes, *problems))
    return trace


def _target(path: Path, manifest: Compiled) -> Target | None:
    if not manifest.target.description:
        return None
    try:
        return described_target(manifest.target.description)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _why_nothing(manifest: Compiled) -> str:
    for one in manifest.not_compiled:
        return f"nothing was compiled: {one.name}: {one.reason}"
    return f"nothing was compiled{': ' + manifest.notes[-1] if manifest.notes else ''}"


def _said(manifest: Compiled) -> list[str]:
    """What a reader of a report must know of how it came about."""
    target = manifest.target
    several = f"{target.count} x " if target.count > 1 else ""
    notes = [f"compiled for {several}{target.device} on a machine without it: no kernel was tuned by timing it"]
    if not manifest.complete:
        notes.append("not all of it is here: the compilation did not come to its end")
    left = manifest.not_compiled
    if left:
        named = "; ".join(f"{one.name}: {one.reason}" for one in left[:MOST_NAMED])
        more = f"; and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        notes.append(f"not compiled: {named}{more}")
    return [*notes, *manifest.notes]
