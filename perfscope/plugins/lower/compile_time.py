"""Compile time by function, layer and pass, cold and warm. Every moment counts once, for the innermost part.

Sources: the profile and the durations of JAX (`child.py`), XLA's metadata of its passes
(``--xla_dump_module_metadata``), the phases in torch.compile's log.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from perfscope.analyzers.torch_compile import exclusive_ns, stage_of
from perfscope.model.compile_log import Phase
from perfscope.plugins.lower.capture import Run
from perfscope.plugins.lower.document import CacheAnswer, Part

if TYPE_CHECKING:
    from perfscope.model.compile_log import CompileLog
    from perfscope.model.trace import Trace

Key = tuple[str, str, str]
"""Function, layer, name."""

_LAYERS = {
    "jaxpr_trace_duration": "tracing",
    "jaxpr_to_mlir_module_duration": "lowering to StableHLO",
    "backend_compile_duration": "XLA: compile or load from the cache",
}
_CACHE = {"cache_hits": True, "cache_misses": False}
_BACKEND = "backend_compile_and_load"
_CALL = re.compile(r"^PjitFunction\((.*)\)$")
_PIPELINE = re.compile(r" \(\w+\)$")
_CODE = re.compile(
    r"Pass$|^Codegen|JitCompiler|FusionCompiler|ThunkEmitter|^mlir::|^Inliner|TaskDispatcher|LLVM|Llvm|Emit|ptx|PTX|Canonicalizer"
)
_OWN = re.compile(r"^(PjRt|Pjrt|\w*Compiler::|backend_compile|Tfrt)")
_BLOCK = re.compile(r"pass_metadata \{(.*?)\n\}", re.DOTALL)
_FIELD = re.compile(r"^\s*(pass_name|pipeline_name|start_timestamp_usec|end_timestamp_usec): \"?([^\"\n]*)\"?$", re.M)
MOST_BYTES = 64 << 20


class Spent(Struct):
    """Time and number of calls."""

    ns: int = 0
    calls: int = 0


class _Line(msgspec.Struct):
    event: str
    function: str = ""
    seconds: float | None = None


def table(runs: Mapping[Run, Mapping[Key, Spent]]) -> tuple[Part, ...]:
    """The parts of the cold and the warm run, the longest first."""
    cold, warm = runs.get("cold", {}), runs.get("warm", {})
    parts = []
    for key in dict.fromkeys((*cold, *warm)):
        first, second = cold.get(key), warm.get(key)
        parts.append(
            Part(
                function=key[0], layer=key[1], name=key[2], cold_ns=None if first is None else first.ns,
                calls=(first or second or Spent()).calls,
                warm_ns=(0 if warm else None) if second is None else second.ns,
            )
        )  # fmt: skip
    return tuple(sorted(parts, key=lambda part: -max(part.cold_ns or 0, part.warm_ns or 0)))


def jax_durations(file: Path, run: Run) -> tuple[dict[Key, Spent], tuple[CacheAnswer, ...]]:
    """Time that JAX reported, by function and layer, and the answers of its persistent cache."""
    spent: dict[Key, Spent] = defaultdict(Spent)
    answers: Counter[bool] = Counter()
    for raw in file.read_bytes()[:MOST_BYTES].splitlines():
        try:
            line = msgspec.json.decode(raw, type=_Line)
        except msgspec.MsgspecError:
            continue
        end = line.event.rpartition("/")[2]
        if end in _LAYERS and line.seconds is not None:
            part = spent[line.function.removeprefix("jit(").removesuffix(")"), _LAYERS[end], ""]
            part.ns += round(line.seconds * 1e9)
            part.calls += 1
        elif end in _CACHE:
            answers[_CACHE[end]] += 1
    told = CacheAnswer(cache="JAX's persistent cache", run=run, hits=answers[True], misses=answers[False])
    return dict(spent), (told,) if answers else ()


def xla_parts(trace: Trace) -> dict[Key, Spent]:
    """Passes and code generation in a profile of JAX, by the function that was compiled."""
    rows = trace.rows["slices"]
    starts, ends, threads = rows["start_ns"].tolist(), rows["end_ns"].tolist(), rows["thread"].tolist()
    named = [trace.strings[number] for number in rows["name"].tolist()]
    events = list(zip(named, starts, ends, threads, strict=True))
    compiling = sorted((start, end) for name, start, end, _ in events if name == _BACKEND)
    begins = [start for start, _ in compiling]
    calls = sorted((start, end, match[1]) for name, start, end, _ in events if (match := _CALL.match(name)) is not None)
    owners = [_owner(calls, start, end) for start, end in compiling]
    phases, keys = [], []
    for name, start, end, _ in events:
        number = bisect.bisect_right(begins, start) - 1
        if number < 0 or end > compiling[number][1]:
            continue
        phases.append(Phase(name=name, start_ns=start, end_ns=end))
        keys.append((owners[number], _layer(name), _PIPELINE.sub("", name)))
    return _summed(phases, keys)


def _owner(calls: list[tuple[int, int, str]], start: int, end: int) -> str:
    """Function whose call compiled: the innermost call around."""
    around = [call for call in calls if call[0] <= start and end <= call[1]]
    return max(around)[2] if around else ""


def _layer(name: str) -> str:
    if _OWN.search(name):
        return "XLA, other"
    return "XLA code generation" if _CODE.search(name) else "XLA passes"


def _summed(phases: list[Phase], keys: list[Key]) -> dict[Key, Spent]:
    spent: dict[Key, Spent] = defaultdict(Spent)
    for key, ns in zip(keys, exclusive_ns(phases), strict=True):
        spent[key].ns += ns
        spent[key].calls += 1
    return dict(spent)


def pass_metadata(text: str, function: str) -> dict[Key, Spent]:
    """XLA's own record of its passes, ``*.metadata.textproto``."""
    phases, keys = [], []
    for block in _BLOCK.findall(text):
        fields = dict(_FIELD.findall(block))
        start, end = fields.get("start_timestamp_usec", ""), fields.get("end_timestamp_usec", "")
        name = fields.get("pass_name", "")
        if not (start.isdecimal() and end.isdecimal()) or not name:
            continue
        phases.append(Phase(name=name, start_ns=int(start) * 1000, end_ns=int(end) * 1000))
        keys.append((function, "XLA passes", fields.get("pipeline_name", "") if name == "pipeline-start" else name))
    return _summed(phases, keys)


def torch_parts(log: CompileLog, run: Run) -> tuple[dict[Key, Spent], tuple[CacheAnswer, ...]]:
    """Phases of torch.compile by function and stage, and the answers of its caches."""
    functions = {one.compile_id: one.function or one.compile_id for one in log.compiles}
    owned: list[str] = []
    for phase in log.phases:
        around = "" if phase.parent is None or phase.parent >= len(owned) else owned[phase.parent]
        owned.append(functions.get(phase.compile_id or "", around))
    keys = [
        (function, str(stage_of(phase.name)), phase.name) for function, phase in zip(owned, log.phases, strict=True)
    ]
    parts = _summed([*log.phases], keys)
    whole: dict[Key, Spent] = defaultdict(Spent)
    for (function, layer, _), spent in parts.items():
        whole[function, layer, ""].ns += spent.ns
        whole[function, layer, ""].calls += spent.calls
    return {**parts, **whole}, tuple(_answers(log, run))


def _answers(log: CompileLog, run: Run) -> Iterator[CacheAnswer]:
    counted: Counter[tuple[str, str]] = Counter()
    for one in log.compiles:
        counted.update((cache, answer) for cache, answer in one.caches.items())
    for cache in dict.fromkeys(name for name, _ in counted):
        yield CacheAnswer(cache=cache, run=run, hits=counted[cache, "hit"], misses=counted[cache, "miss"])


def together(tables: Iterable[Mapping[Key, Spent]]) -> dict[Key, Spent]:
    """The sum of several tables."""
    spent: dict[Key, Spent] = defaultdict(Spent)
    for one in tables:
        for key, value in one.items():
            spent[key].ns += value.ns
            spent[key].calls += value.calls
    return dict(spent)
