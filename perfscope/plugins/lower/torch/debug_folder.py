"""Inductor's debug folders (``TORCH_COMPILE_DEBUG=1``): graphs before and after its passes, and the output code."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from perfscope.analyzers.readers import LoggedGraph, open_bytes, printed_graph
from perfscope.plugins.lower.kernel_code import KERNEL_SOURCE
from perfscope.plugins.lower.program import Program, ProgramStage, StageOp
from perfscope.plugins.lower.torch.fates import Passage, fates_of, nodes_of, weight_of
from perfscope.plugins.lower.torch.stages import AFTER, BACKWARD, FORWARD, FX, stage_ops

MOST_BYTES = 256 << 20

_FOLDER = re.compile(r"^model__(\d+)_(forward|backward|inference)_")
_GRAPHS = {"fx_graph_readable.py": False, "fx_graph_transformed.py": True}
"""File -> whether it is the graph after inductor's passes."""
_DEFINED = re.compile(r"^(\w+) = async_compile\.\w+\(", re.MULTILINE)


def debugged_programs(folder: Path) -> tuple[Program, ...]:
    """The programs below a folder, a forward with its backward."""
    found: dict[str, dict[bool, Path]] = defaultdict(dict)
    for code in sorted(folder.rglob("output_code.py")):
        match = _FOLDER.match(code.parent.name)
        if match is not None:
            found[f"{code.parent.parent}/{match[1]}"][match[2] == "backward"] = code.parent
    return tuple(_program(f"model {key.rpartition('/')[2]}", parts) for key, parts in found.items())


def _program(name: str, parts: dict[bool, Path]) -> Program:
    graphs: dict[bool, dict[bool, LoggedGraph]] = {False: {}, True: {}}
    for backward, folder in parts.items():
        for file, after in _GRAPHS.items():
            if (folder / file).is_file():
                graphs[after][backward] = printed_graph(AFTER, "", _text(folder / file))
    written, after_passes = graphs[False], graphs[True]
    both = [{node.name for node in nodes_of(graph)} for graph in written.values()]
    passage = Passage(
        program=name, dynamo=None, joint=None, written={key: written.get(key) for key in (False, True)},
        after=after_passes, kernels=(), recomputed=frozenset(both[0] & both[1]) if len(both) > 1 else frozenset(),
    )  # fmt: skip
    stages = [ProgramStage(name=FX, missing="TORCH_TRACE=DIR writes it, with the line of a checkpoint")]
    for backward, graph in sorted(written.items()):
        direction = "backward" if backward else "forward"
        stages.append(
            ProgramStage(name=BACKWARD if backward else FORWARD, ops=stage_ops(graph, direction, passage.recomputed))
        )
    for backward, graph in sorted(after_passes.items()):
        direction = "backward" if backward else "forward"
        stages.append(ProgramStage(name=f"{AFTER}, {direction}", ops=stage_ops(graph, direction, passage.recomputed)))
    stages.append(ProgramStage(name="kernels", missing="INDUCTOR_PROVENANCE=1 TORCH_TRACE=DIR writes their lines"))
    stages.append(_sources([folder / "output_code.py" for _, folder in sorted(parts.items())]))
    return Program(name=name, stages=tuple(stages), fates=tuple(fates_of(passage)), weight=weight_of(passage))


def _sources(codes: list[Path]) -> ProgramStage:
    ops = []
    for code in codes:
        text = _text(code)
        ops += [
            StageOp(name=match[1], op="source", inside=match[1],
                    text=f"{code}:{text.count(chr(10), 0, match.start()) + 1}")
            for match in _DEFINED.finditer(text)
        ]  # fmt: skip
    return ProgramStage(name=KERNEL_SOURCE, ops=tuple(ops), file=str(codes[0]))


def _text(file: Path) -> str:
    with open_bytes(file, MOST_BYTES) as data:
        return bytes(data).decode("utf-8", "replace")
