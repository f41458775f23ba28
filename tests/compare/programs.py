"""Small compiled programs for tests of comparing them, as HLO text: one fusion, and what can become of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.hlo.module import HloModule
from perfscope.model.documents.torch_plan import (
    GraphCollectives,
    GraphRun,
    PlannedCollective,
    PlannedProcesses,
    StepPosition,
)
from perfscope.model.op_graph import GraphOp, GraphTensor, OpGraph
from perfscope.model.torch_plan import LoadedPlan, PlannedGraph
from perfscope.model.trace import Trace
from tests.hlo_build import GPU, hlo_module
from tests.plans.build import graph, kernel, plan, product, trace_of

MIB = 1 << 20
OPS = 8
"""Products of a step, each of at least 0.1 ms, on separate lines."""


def ddp_all_reduce(at: int, until: int | None, **changes: Any) -> PlannedCollective:
    """A sum of gradients by DistributedDataParallel, requested after that many ops."""
    parts: dict[str, Any] = {
        "kind": "all-reduce",
        "op": "c10d.allreduce_",
        "bytes": 32 * MIB,
        "dtype": "bfloat16",
        "group": 0,
        "by": "DistributedDataParallel",
        "phase": "backward",
        "file": "train.py",
        "line": 30,
        "function": "step",
        "at": StepPosition(ops=at),
        "after": StepPosition(ops=at),
        "until": None if until is None else StepPosition(ops=until),
    }
    return PlannedCollective(**{**parts, **changes})


def program_all_reduce(at: int, until: int | None, **changes: Any) -> PlannedCollective:
    """A sum requested by the program itself."""
    return ddp_all_reduce(at, until, **{"by": "the program", "phase": "forward", "line": 12, **changes})


def ops(down: int = 0) -> OpGraph:
    """The step, its code ``down`` lines further down."""
    products = tuple(
        GraphOp(
            index=at, name="aten.mm.default", phase="backward", inputs=(0, 1), outputs=(2 + at,), mutated=(),
            pointwise=False, reduction=False, view=False, flops=10**11 * (at + 1), module="", file="train.py",
            line=14 + at + down, function="step", sequence=None,
        )
        for at in range(OPS)
    )  # fmt: skip
    tensors = tuple(
        GraphTensor(storage=number, shape=(64, 64), dtype="bfloat16", device="cpu", bytes=8192)
        for number in range(2 + OPS)
    )
    return OpGraph(step=1, device="cpu", ops=products, tensors=tensors, live_out=frozenset(), parameters=frozenset())


def job(folder: Path, *rows: PlannedCollective, world: int = 8, down: int = 0, **changes: Any) -> Trace:
    """A program that compiles nothing, as the first of ``world`` processes; 0: it sets up none."""
    processes = PlannedProcesses(
        world_size=max(world, 1), backend="nccl", groups=(tuple(range(world)), (0, 1), (0,)), eager=rows,
    )  # fmt: skip
    made = plan(
        **{"compiled_by": "perfscope", "target": "h100x8", "processes": processes if world else None, **changes}
    )
    return _with(trace_of(folder, made, "h100x8"), eager=ops(down))


def compiled_job(folder: Path, *inside: PlannedCollective, outside: tuple[PlannedCollective, ...] = ()) -> Trace:
    """A program that compiles its step: a graph of two products that runs twice, an op outside of it between them."""
    kernels = [product(), product()]
    for one in reversed(inside):
        kernels.insert(one.at.ops, kernel("all_reduce", kind="collective", read_bytes=0, written_bytes=0))
    first: PlannedGraph = graph(*kernels, calls=2)
    processes = PlannedProcesses(
        world_size=8, backend="nccl", groups=(tuple(range(8)),), outside=outside,
        inside=(GraphCollectives(graph=0, collectives=inside),),
        runs=(GraphRun(graph=0, ops=0), GraphRun(graph=0, ops=OPS)),
    )  # fmt: skip
    made = plan(first, target="h100x8", processes=processes)
    return _with(trace_of(folder, made, "h100x8"), outside=ops())


def on_target(trace: Trace, target: str | None) -> Trace:
    """The same plan for another machine; ``None``: an unknown machine."""
    return replace(trace, target=None if target is None else parse_target(target, None))


def only_plan(trace: Trace) -> LoadedPlan:
    """The one plan of a trace."""
    (found,) = trace.torch_plans
    return found


def _with(trace: Trace, **graphs: OpGraph) -> Trace:
    return replace(trace, torch_plans=tuple(replace(one, **graphs) for one in trace.torch_plans))


SIZE = 1024 * 1024
F32 = "f32[1024,1024]{1,0}"


def meta(name: str, line: int, file: str = "model.py") -> str:
    """Where an instruction is from."""
    return f'metadata={{op_name="jit(step)/{name}" source_file="{file}" source_line={line}}}'


def fused_program(*, layers: int = 1, shift: int = 0, suffix: str = "", file: str = "model.py") -> HloModule:
    """``exp`` and ``tanh`` in one kernel per layer. ``shift``: additional lines above; ``suffix``: of every name."""
    bodies, entry = [], []
    previous = f"p{suffix}"
    for layer in range(layers):
        at = f"{layer}{suffix}"
        scope = f"jvp(block_{layer})"
        bodies.append(
            f"body{at} {{\n  x{at} = {F32} parameter(0)\n"
            f"  e{at} = {F32} exponential(x{at}), {meta(f'{scope}/exp', 10 + shift, file)}\n"
            f"  ROOT t{at} = {F32} tanh(e{at}), {meta(f'{scope}/tanh', 11 + shift, file)}\n}}\n"
        )
        name = f"loop_fusion{at}"
        entry.append(
            f"  {name} = {F32} fusion({previous}), kind=kLoop, calls=body{at}, "
            f"{meta(f'{scope}/tanh', 11 + shift, file)}, {GPU}"
        )
        previous = name
    return _module(bodies, entry, previous, suffix)


def split_program(*, layers: int = 1, broken: frozenset[int] | None = None, shift: int = 0) -> HloModule:
    """The same, with each of the two in a separate kernel in the ``broken`` layers (default: all)."""
    bodies, entry = [], []
    previous = "p"
    for layer in range(layers):
        scope = f"jvp(block_{layer})"
        exp, tanh = meta(f"{scope}/exp", 10 + shift), meta(f"{scope}/tanh", 11 + shift)
        if broken is not None and layer not in broken:
            bodies.append(
                f"body{layer} {{\n  x{layer} = {F32} parameter(0)\n  e{layer} = {F32} exponential(x{layer}), {exp}\n"
                f"  ROOT t{layer} = {F32} tanh(e{layer}), {tanh}\n}}\n"
            )
            entry.append(f"  f{layer} = {F32} fusion({previous}), kind=kLoop, calls=body{layer}, {tanh}, {GPU}")
            previous = f"f{layer}"
            continue
        for name, op, said in (("a", "exponential", exp), ("b", "tanh", tanh)):
            bodies.append(
                f"body{name}{layer} {{\n  x{name}{layer} = {F32} parameter(0)\n"
                f"  ROOT r{name}{layer} = {F32} {op}(x{name}{layer}), {said}\n}}\n"
            )
            entry.append(
                f"  k{name}{layer} = {F32} fusion({previous}), kind=kLoop, calls=body{name}{layer}, {said}, {GPU}"
            )
            previous = f"k{name}{layer}"
    return _module(bodies, entry, previous, "")


def _module(bodies: list[str], entry: list[str], last: str, suffix: str) -> HloModule:
    lines = [*bodies, "ENTRY main {", f"  p{suffix} = {F32} parameter(0)", *entry]
    return hlo_module("\n".join([*lines, f"  ROOT r = ({F32}) tuple({last})", "}"]))


GATHER = """
{body}ENTRY main {{
  p = f32[128,1024]{{1,0}} parameter(0)
  q = f32[1024,1024]{{1,0}} parameter(1)
  g = (f32[128,1024]{{1,0}}, f32[1024,1024]{{1,0}}) all-gather-start(p), {groups}, {at}, backend_config={config}
{between}  d = f32[1024,1024]{{1,0}} all-gather-done(g), {at}
{after}  ROOT r = (f32[1024,1024]{{1,0}}, f32[1024,1024]{{1,0}}) tuple(d, w)
}}
"""


def gathers(*, sync: bool = False, beside: bool = True) -> HloModule:
    """An asynchronous all-gather, with a kernel during or after it."""
    body = "work {\n  x = f32[1024,1024]{1,0} parameter(0)\n  ROOT t = f32[1024,1024]{1,0} tanh(x)\n}\n"
    line = f"  w = f32[1024,1024]{{1,0}} fusion(q), kind=kLoop, calls=work, {meta('tanh', 21)}, {GPU}\n"
    return hlo_module(
        GATHER.format(
            body=body, at=meta("all_gather", 20), between=line * beside, after=line * (not beside),
            groups="replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}",
            config=f'{{"collective_backend_config":{{"is_sync":{str(sync).lower()}}}}}',
        )
    )  # fmt: skip


LOOP = """
body {{
  s = (s32[], f32[1024,1024]{{1,0}}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[1024,1024]{{1,0}} get-tuple-element(s), index=1
  t = f32[1024,1024]{{1,0}} tanh(x), {at}
  ROOT n = (s32[], f32[1024,1024]{{1,0}}) tuple(i, t)
}}
cond {{
  c = (s32[], f32[1024,1024]{{1,0}}) parameter(0)
  ci = s32[] get-tuple-element(c), index=0
  ck = s32[] constant(4)
  ROOT lt = pred[] compare(ci, ck), direction=LT
}}
ENTRY main {{
  p = (s32[], f32[1024,1024]{{1,0}}) parameter(0)
  ROOT w = (s32[], f32[1024,1024]{{1,0}}) while(p), condition=cond, body=body, backend_config={config}
}}
"""


def loops(turns: int) -> HloModule:
    """One kernel in a loop."""
    config = f'{{"known_trip_count":{{"n":"{turns}"}},"operation_queue_id":"0"}}'
    return hlo_module(LOOP.format(config=config, at=meta("while/body/tanh", 30)))


def matmul_program(dtype: str = "f32", *, again: bool = False) -> HloModule:
    """A matrix product; ``again``: and once more for the backward pass, as ``jax.checkpoint`` writes it."""
    shape = f"{dtype}[512,512]{{1,0}}"
    sizes = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    lines = [f"  d = {shape} dot(p, p), {sizes}, {meta('jvp()/dot_general', 40)}, {GPU}"]
    results = ["d"]
    if again:
        said = meta("transpose(jvp())/checkpoint/rematted_computation/dot_general", 40)
        lines.append(f"  e = {shape} dot(p, d), {sizes}, {said}")
        results.append("e")
    whole = f"  ROOT r = ({', '.join([shape] * len(results))}) tuple({', '.join(results)})"
    return hlo_module("\n".join(["ENTRY main {", f"  p = {shape} parameter(0)", *lines, whole, "}"]))


def before_optimization(*, barrier: bool) -> HloModule:
    """The program of one layer before optimization; with a barrier each later line moves by one."""
    held = "b" if barrier else "e"
    extra = f"  b = {F32} opt-barrier(e), {meta('jvp(block_0)/optimization_barrier', 11)}\n" if barrier else ""
    text = (
        f"ENTRY main {{\n  p = {F32} parameter(0)\n  e = {F32} exponential(p), {meta('jvp(block_0)/exp', 10)}\n{extra}"
        f"  ROOT t = {F32} tanh({held}), {meta('jvp(block_0)/tanh', 11 + barrier)}\n}}"
    )
    return hlo_module(text, scheduled=False)
