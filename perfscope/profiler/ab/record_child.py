"""The process of a profiled launch of an A/B test: `perfscope run` without its command line.

It is a separate process with our own import path: packages that are first on the program's path (a commit of click, or
of numpy) belong to the program.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from perfscope.model.capture import CaptureOptions
from perfscope.model.errors import NotStartedError
from perfscope.profiler.launch.program import Target
from perfscope.profiler.launch.record import record
from perfscope.profiler.session.ranks import RUN_ID


class Order(Struct, frozen=True, kw_only=True):
    """What to record. ``python_path``: the program's ``PYTHONPATH``; ``answer``: file for the run's folder."""

    arguments: tuple[str, ...]
    module: bool
    command: bool
    root: str
    name: str
    python_path: str
    answer: str
    step_annotation: str | None = None

    def dump(self) -> str:
        """Return JSON text."""
        return json.dumps(msgspec.structs.asdict(self))


def main(text: str) -> int:
    """Carry out the order; return the program's exit code, 125 if it could not be started."""
    raw = json.loads(text)
    order = Order(**{**raw, "arguments": tuple(raw["arguments"])})
    os.environ["PYTHONPATH"] = order.python_path
    os.environ.pop(RUN_ID, None)  # it names the run of a job, so both arms would share one
    target = Target(arguments=order.arguments, module=order.module, command=order.command)
    options = CaptureOptions(quiet=True, step_annotation=order.step_annotation)
    try:
        recorded = record(target, options, root=Path(order.root), name=order.name)
    except NotStartedError as error:
        print(f"perfscope: {error}", file=sys.stderr)
        return error.exit_code
    Path(order.answer).write_text(recorded.directory.name, encoding="utf-8")
    return recorded.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
