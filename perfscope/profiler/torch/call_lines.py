"""Lines at which Python called something while torch.profiler recorded stacks.

The exported trace names a Python span by the line at which its function is defined. The profiler also holds the frame
that called it, with the line that ran (torch/csrc/profiler/python, ``caller``); this reads it before the export.
"""

from __future__ import annotations

import re
from typing import Any

from perfscope.profiler.source_files import cell
from perfscope.profiler.torch import compat

MOST_EVENTS = 200_000
"""Events of the profiler that are looked at, in order of time: 4 us each, about as long as their export."""
_LEFT_OUT = re.compile(r"<|(.*/)?(torch|perfscope/profiler)/")
"""File names of callers without a line: torch, this recorder, code without a file."""


_NOTEBOOK = "/ipykernel_"
"""Part of the name under which IPython compiles a cell of a notebook."""


def call_lines(profiler: Any) -> dict[str, Any] | None:
    """``start_ns`` since 1970 and ``line`` of the caller of each call, in lists of the same length; None without any.

    ``cells``: the notebook's names of its cells (``In[3]``) by the names under which they were compiled.
    """
    try:
        waiting, kinds = compat.python_calls(profiler)
        waiting.reverse()
        starts, lines, cells, seen = list[int](), list[int](), dict[str, str](), 0
        while waiting and seen < MOST_EVENTS:
            event = waiting.pop()
            seen += 1
            if event.tag in kinds:
                caller = event.extra_fields.caller
                file = caller.file_name
                if _LEFT_OUT.match(file) is None:
                    starts.append(event.start_time_ns)
                    lines.append(caller.line_number)
                    if _NOTEBOOK in file and file not in cells:
                        cells[file] = cell(file) or file
            waiting.extend(reversed(event.children))
    except (AttributeError, ImportError, RuntimeError):  # not documented, so another torch may not have it
        return None
    return {"start_ns": starts, "line": lines, "cells": cells} if starts else None
