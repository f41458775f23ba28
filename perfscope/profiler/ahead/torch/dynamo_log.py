"""What dynamo says while it looks at frames: whose they are, where graphs break, why a frame is compiled again."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from perfscope.model.documents.torch_plan import MAX_ROWS, MAX_TEXT, PlanBreak, PlanLine, PlanRecompile
from perfscope.model.errors import DataError
from perfscope.profiler.torch import compat
from perfscope.profiler.torch.op_graph.frames import Frames

_OWN_FOLDER = Path(__file__).parents[1]
_OUTERMOST = "torch/_dynamo/external_utils.py"
"""Around a module of torch's own that is called first of all."""

_FILE = re.compile(r'(File "|user code at |falling back to eager[^\n]*? at |line \d+ of )(/[^":\n]+|[A-Za-z]:[^":\n]+)')
_PATH = re.compile(r"(?<![\w/.])/(?:[\w.+-]+/)+[\w.+-]+\.py\b")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


def _listed(payload: Any) -> list[Any]:
    """Reasons of a recompilation: a JSON list, or (one guard, torch since 2.11) plain text."""
    try:
        said = json.loads(payload) if isinstance(payload, str) else payload
    except ValueError:
        said = payload
    return said if isinstance(said, list) else [said]


class DynamoLog(logging.Handler):
    """A handler of torch's structured trace that keeps breaks and recompilations, and forgets the rest."""

    def __init__(self, frames: Frames) -> None:
        super().__init__()
        self._frames = frames
        self._interned: dict[int, str] = {}
        self.functions: dict[str, tuple[str, PlanLine | None]] = {}
        """Compile id to name of the frame's function, and its first line."""
        self._own: set[str] = set()
        """Compile ids of frames of our own, which stand before functions of torch's."""
        self._breaks: list[tuple[str, str]] = []
        self._recompiles: list[tuple[str, tuple[str, ...]]] = []

    def install(self) -> None:
        """Listen; ``DataError`` where this torch does not say such things."""
        formatter = compat.trace_formatter()
        if isinstance(formatter, str):
            raise DataError(f"torch programs cannot be planned: {formatter}")
        self.setFormatter(formatter)
        compat.add_trace_handler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; it never raises."""
        try:
            self._take(record.metadata, getattr(record, "payload", None))  # type: ignore[attr-defined]
        except Exception:
            logging.getLogger(__name__).debug("a record of torch's compiler was not understood", exc_info=True)

    def breaks(self) -> tuple[PlanBreak, ...]:
        """Graph breaks in the order they were found, equal ones once."""
        rows = []
        for compile_id, text in dict.fromkeys(self._breaks):
            if compile_id in self._own:
                continue
            function, place = self.functions.get(compile_id, (None, None))
            rows.append(PlanBreak(compile_id=compile_id, function=function, place=place, text=text))
        return tuple(rows[:MAX_ROWS])

    def recompiles(self) -> tuple[PlanRecompile, ...]:
        """Frames that were compiled again."""
        rows = []
        for compile_id, reasons in self._recompiles:
            if compile_id in self._own:
                continue
            function, place = self.functions.get(compile_id, (None, None))
            rows.append(PlanRecompile(compile_id=compile_id, function=function, place=place, reasons=reasons))
        return tuple(rows[:MAX_ROWS])

    def _take(self, facts: dict[str, Any], payload: Any) -> None:
        if "str" in facts:
            text, number = facts["str"]
            self._interned[number] = text
            return
        compile_id = f"{facts.get('frame_id', '-')}/{facts.get('frame_compile_id', '-')}"
        if "dynamo_start" in facts:
            self._started(compile_id, facts["dynamo_start"].get("stack") or ())
            return
        name = (facts.get("artifact") or {}).get("name")
        if name == "dynamo_graph_break_reason":
            self._breaks.append((compile_id, self._shown(str(payload))))
        elif name == "recompile_reasons":
            reasons = _listed(payload)
            self._recompiles.append((compile_id, tuple(self._shown(str(one)) for one in reasons[:MAX_ROWS])))

    def _started(self, compile_id: str, stack: Any) -> None:
        if not stack:
            return
        frame = stack[-1]
        file = frame.get("filename")
        path = self._interned.get(file, "") if isinstance(file, int) else str(file)
        function = str(frame.get("name"))
        if Path(path).parent == _OWN_FOLDER:
            self._own.add(compile_id)
        if path.endswith(_OUTERMOST):
            self.functions[compile_id] = ("a module of torch.nn", None)
            return
        place = PlanLine(file=self._frames.name(path), line=int(frame.get("line") or 0), function=function)
        self.functions[compile_id] = (function, place)

    def _shown(self, text: str) -> str:
        """Without this machine's folders and without addresses, which differ from run to run."""
        text = _FILE.sub(lambda found: found[1] + self._frames.name(found[2]), text)
        text = _PATH.sub(lambda found: self._frames.name(found[0]), text)
        return _ADDRESS.sub("0x", text)[:MAX_TEXT]
