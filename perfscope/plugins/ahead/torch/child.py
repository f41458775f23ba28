"""PyTorch programs in the child: runs the program with fake tensors, lets inductor plan its graphs, writes the plan.

Nothing is computed and nothing large is allocated: a model of 7 billion parameters is planned on a laptop. Imported
after the packages for planning are on the path.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from msgspec.structs import replace

from perfscope.model.documents.torch_plan import SCHEMA, TorchPlan, write_plan
from perfscope.plugins.ahead.common.program import run_program
from perfscope.plugins.ahead.request import Request
from perfscope.plugins.ahead.torch import compat
from perfscope.plugins.ahead.torch.compat import is_launch, prefer_foreach
from perfscope.plugins.ahead.torch.compiler import DynamoLog, InductorPlanner, ScheduledGraph
from perfscope.plugins.ahead.torch.cuda import AttentionRule, FakeCuda
from perfscope.plugins.ahead.torch.fake_tensors import FakeWorld
from perfscope.plugins.ahead.torch.kernels import KernelReader
from perfscope.plugins.ahead.torch.memory import OpWatch, StepPeaks
from perfscope.plugins.ahead.torch.pipelines import PipelineWatch
from perfscope.plugins.ahead.torch.processes import JobPlan
from perfscope.plugins.ahead.torch.steps import PlanSteps, StopPlanningError, WatcherPause

if TYPE_CHECKING:
    from perfscope.plugins.ahead.common.child import EventWriter


def plan_program(request: Request, send: EventWriter) -> None:
    """Plan the program of a request into ``plans/<rank>.<name>.json`` of its folder; ``DataError`` if impossible."""
    compat.check()
    _Planning(request, send).run()


def capability_of(architecture: object) -> tuple[int, int]:
    """Compute capability of ``sm_90a``; an H100's for a GPU of another vendor."""
    match = re.match(r"sm_(\d+)(\d)", str(architecture))
    return (int(match[1]), int(match[2])) if match else (9, 0)


class _Planning:
    """The planning of a program, from its first line to the file."""

    def __init__(self, request: Request, send: EventWriter) -> None:
        self._request, self._send = request, send
        first = request.arguments[0] if request.arguments else "program"
        self._program = first if request.module else Path(first).stem
        if request.exported is not None:
            self._program = Path(request.exported).stem
        self._folder = Path(request.folder) / "plans"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stem = f"{request.rank:02}.{_file_name(self._program.rpartition('.')[2])}"
        self.graphs: list[Any] = []
        self.every_call: Counter[int] = Counter()
        self.failures: list[str] = []
        device = request.target.machine.description.get("device")
        self._device: dict[str, Any] = device if isinstance(device, dict) else {}
        capability = capability_of(self._device.get("architecture"))
        self.world = FakeWorld(None if request.module else Path(first))
        self.attention = AttentionRule()
        self.dynamo_log = DynamoLog(self.world.frames)
        self.reader = KernelReader(self.world.frames)
        self.memory = StepPeaks(self.world.frames, self.reader.place_of)
        self.answers = self._fake_device(capability)
        self.processes = JobPlan(
            count=request.target.machine.count,
            local=self.answers.count,
            ledger=self.memory.ledger,
            ops=lambda: self.steps.ops,
            rank=request.rank,
            pipeline=PipelineWatch(request.rank, Path(request.exchange), self._pipeline_found),
        )
        self.watch = OpWatch((self.memory.ledger.seen, self.processes.book.seen))
        self._listen()

    def _fake_device(self, capability: tuple[int, int]) -> FakeCuda:
        target, machine = self._request.target, self._request.target.machine
        node = self._device.get("node")
        most = int(node.get("host_devices") or 0) if isinstance(node, dict) else 0
        return FakeCuda(
            name=f"{target.vendor} {machine.device}",
            count=min(machine.count, most or machine.count),
            memory_bytes=int(machine.memory_bytes or self._device.get("memory_bytes") or 0),
            cores=int(self._device.get("cores") or 0),
            capability=capability,
            on_device=self.memory.ledger.moved,
            compiling=lambda: self.quiet.compiling,
        )

    def _listen(self) -> None:
        self.planner = InductorPlanner(
            self._planned,
            called=self._called,
            failed=self.failures.append,
            around=self.answers.hidden,
            paused=lambda: self.quiet.around(),
            held=self.memory.graph,
            properties=self.answers.properties(),
        )
        self.steps = PlanSteps(
            self._folder,
            self._stem,
            self.world.frames,
            compiles=lambda: bool(self.graphs or self.failures),
            backend=self.planner.backend,
            memory=self.memory,
            processes=self.processes,
            seconds=self._request.limits.seconds,
        )
        self.quiet = WatcherPause((self.steps.paused, self.watch.paused))

    def run(self) -> None:
        """Run the program and write the plan, also for a program that failed."""
        compat.launch_nothing()
        self.planner.install()
        self.dynamo_log.install()
        self.attention.install()
        self.world.install()
        self.answers.install()
        prefer_foreach()
        self.processes.install()
        self.steps.install()
        self.quiet.listen()
        failure = None
        with self.world.mode:
            self.memory.install()
            self.watch.install()
            try:
                run_program(self._request)
            except StopPlanningError:
                pass
            except BaseException as error:
                failure = self._failure_text(error)
            finally:
                self.steps.finish()
        plan = self._plan(failure)
        path = self._folder / f"{self._stem}.json"
        plan = write_plan(path, plan)
        self._report_plan(plan, f"plans/{path.name}")

    def _report_plan(self, plan: TorchPlan, file: str) -> None:
        """The manifest's entries: one per graph, and one for a program without graphs."""
        if not plan.graphs and (plan.eager_file or plan.outside_file):
            self._send("planned", program={"file": file, "name": "no graph", "function": plan.name, "calls": 1})
        for graph in plan.graphs:
            line = None if graph.place is None else {"file": graph.place.file, "line": graph.place.line}
            self._send(
                "planned",
                program={
                    "file": file,
                    "name": f"{graph.compile_id} {graph.direction}",
                    "function": graph.function or "",
                    "place": line,
                    "calls": graph.calls,
                    "output_bytes": graph.output_bytes,
                    "fingerprint": plan.fingerprint,
                },
            )
        for reason in self.failures:
            self._send("not_planned", what={"name": "a graph", "reason": reason})
        for note in (*plan.notes, *(f"not covered by the plan: {text}" for text in plan.not_covered)):
            self._send("note", text=note)
        self._send("stopped", reason=plan.stopped)
        if plan.failure is not None:
            self._send("failure", failure={"text": plan.failure, "lines": []})

    def _pipeline_found(self, ranks: tuple[int, ...]) -> None:
        self._send("pipeline", ranks=list(ranks))

    def _planned(self, scheduled: ScheduledGraph) -> int:
        self.graphs.append(self.reader.graph(scheduled))
        self.memory.planned(scheduled)
        self.processes.planned(len(self.graphs) - 1, scheduled, self.reader.place_of, is_launch)
        return len(self.graphs) - 1

    def _called(self, number: int) -> None:
        if self.quiet.compiling:
            return
        self.every_call[number] += 1
        self.processes.called(number)
        if self.steps.counting:
            self.steps.calls[number] += 1

    def _failure_text(self, error: BaseException) -> str:
        """The program's exception in a line, with the user's innermost line."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if self.world.frames.is_user(frame.filename)]
        where = f" at {self.world.frames.name(own[-1].filename)}:{own[-1].lineno}" if own else ""
        inner = getattr(error, "inner_exception", None)  # torch's compiler wraps it and adds advice
        if isinstance(inner, BaseException):
            error = inner
        text = " ".join(str(error).split())[:300]
        return f"{type(error).__name__}{where}: {text}"

    def _plan(self, failure: str | None) -> Any:
        steps = self.steps
        if steps.compiled_by is None:
            steps.decide()
        counted = steps.calls if steps.seen_planned else self.every_call
        graphs = tuple(
            replace(graph, calls=counted[number], function=place[0], place=place[1])
            for number, graph in enumerate(self.graphs)
            if (place := self.dynamo_log.functions.get(graph.compile_id, (None, None)))
        )
        return TorchPlan(
            schema=SCHEMA,
            name=self._program,
            compiled_by="program" if steps.compiled_by == "program" else "perfscope",
            target=self._request.target.machine.asked,
            versions=_versions(),
            graphs=graphs,
            breaks=self.dynamo_log.breaks(),
            recompiles=self.dynamo_log.recompiles(),
            made_up=self.world.made_up(),
            not_covered=tuple(self._not_covered(graphs)),
            notes=tuple(self._notes()),
            stopped=steps.stopped or ("the program raised" if failure else steps.ended),
            float32_products="float32" if torch.get_float32_matmul_precision() == "highest" else "tf32",
            optimizers=tuple(sorted(steps.optimizers)),
            steps_from=steps.source,
            complete=failure is None and bool(steps.seen_planned or graphs),
            failure=failure,
            eager_file=steps.eager_file,
            outside_file=steps.outside_file,
            memory=self.memory.found(),
            processes=self.processes.found(),
            converted_from="onnx" if (self._request.exported or "").lower().endswith(".onnx") else "",
        )

    def _not_covered(self, graphs: Any) -> list[str]:
        reasons = [f"a graph could not be planned: {reason}" for reason in self.failures]
        reasons += [kernel.not_covered for graph in graphs for kernel in graph.kernels if kernel.not_covered]
        if self.planner.tuned:
            reasons.append(
                "autotuning (max-autotune): kernels would be run to choose; library calls are planned instead"
            )
        if self.planner.replayed:
            reasons.append(
                "CUDA graphs (reduce-overhead): each launch of a planned graph is costed as the host's own, and the "
                "pools that replays keep are in no peak"
            )
        if self.world.recurrent:
            reasons.append(
                "recurrent layers that run eagerly use cuDNN's own kernels on the device; they are costed by bytes"
            )
        if self.steps.source is None:
            reasons.append("steps: none were found, so the whole program counts as one step, without its eager ops")
        reasons += self.steps.problems
        reasons += self.processes.not_covered()
        return list(dict.fromkeys(reasons))

    def _notes(self) -> list[str]:
        notes = ["planned, not measured: no kernel was compiled or run", *self.processes.notes()]
        notes += [
            f"scaled_dot_product_attention is written out in {count:,} calls: {path}"
            for path, count in sorted(self.attention.paths.items())
            if path != "fused"
        ]
        if self.answers.autocast:
            notes.append(
                "autocast: products run in lower precision as on CUDA; which other ops stay in float32 is as on a CPU"
            )
        if self.attention.paths["fused"]:
            notes.append(
                "scaled_dot_product_attention is planned as one fused kernel each way; which (flash, cuDNN) is for the "
                "device to choose"
            )
        return notes


def _file_name(text: str) -> str:
    return re.sub(r"[^\w.-]", "_", text)[:80] or "program"


def _versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0], "torch": str(torch.__version__)}
    triton: Any = sys.modules.get("triton")
    return versions if triton is None else {**versions, "triton": str(triton.__version__)}
