"""Lines at which Python called something while torch.profiler recorded stacks.

The exported trace names a Python span by the line at which its function is defined. The profiler also holds the frame
that called it, with the line that ran (torch/csrc/profiler/python, ``caller``); this reads it before the export.
"""

from __future__ import annotations

import re
from typing import Any

MOST_EVENTS = 200_000
"""Events of the profiler that are looked at, in order of time: 4 us each, about as long as their export."""
_LEFT_OUT = re.compile(r"<|(.*/)?(torch|perfscope/profiler)/")
"""File names of callers without a line: torch, this recorder, code without a file."""


def call_lines(profiler: Any) -> dict[str, list[int]] | None:
    """Start of each call in ns since 1970 and the line of its caller, of the same length; None if torch has none."""
    try:
        from torch._C._profiler import _EventType

        kinds = (_EventType.PyCall, _EventType.PyCCall)
        waiting = list(reversed(profiler.profiler.kineto_results.experimental_event_tree()))
        starts, lines, seen = list[int](), list[int](), 0
        while waiting and seen < MOST_EVENTS:
            event = waiting.pop()
            seen += 1
            if event.tag in kinds:
                caller = event.extra_fields.caller
                if _LEFT_OUT.match(caller.file_name) is None:
                    starts.append(event.start_time_ns)
                    lines.append(caller.line_number)
            waiting.extend(reversed(event.children))
    except (AttributeError, ImportError, RuntimeError):  # not documented, so another torch may not have it
        return None
    return {"start_ns": starts, "line": lines} if starts else None
