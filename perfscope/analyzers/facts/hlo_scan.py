"""Loops of compiled XLA programs that run many times over very little work."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfscope.analyzers.facts.hlo_linearity import is_linear
from perfscope.analyzers.facts.hlo_program import control_runs, costs
from perfscope.analyzers.facts.hlo_remat import TYPICAL_DEVICE
from perfscope.analyzers.facts.program_device import program_device
from perfscope.analyzers.hardware import Device, find_device
from perfscope.analyzers.hlo.cost import InstructionCost, ModuleCost, module_cost
from perfscope.analyzers.hlo.module import Instruction
from perfscope.model.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop with a known trip count that launches kernels."""

    cost: ModuleCost
    instruction: Instruction
    """The ``while``."""
    trips: int
    entered: int
    """Times the loop begins in one run of the program."""
    kernels: tuple[InstructionCost, ...]
    """Launches of one iteration, the condition's included; nested loops left out. On TPU their bytes are those in the
    chip's own memory too: the state of a small loop lies there."""
    is_linear: bool
    """The carry is updated linearly: the loop has an associative form."""
    encloses: bool
    """Another loop is inside: an iteration is not only these kernels."""
    work_ns: float
    """What the kernels of one iteration take at the least on ``device``: bytes over bandwidth, or FLOPs over peak."""
    device: str
    """As ``ProgramDevice.label``; an H100 where the programs have none."""

    @property
    def launches(self) -> int:
        """In one run of the program."""
        return self.entered * self.trips * len(self.kernels)


def loops(trace: Trace) -> tuple[Loop, ...]:
    """Loops of all programs whose trip count is known."""
    found = []
    known = trace.fact(program_device)
    device = find_device(TYPICAL_DEVICE) if known is None else known.device
    assert device is not None
    for cost in trace.fact(costs):
        launched: dict[str, list[InstructionCost]] = {}
        for row in _everywhere(cost).launched:
            launched.setdefault(row.computation, []).append(row)
        for name, runs in control_runs(cost.module).items():
            for one in cost.module.computations[name].instructions:
                if one.opcode != "while" or one.trip_count is None or len(one.called) != 2:
                    continue
                kernels = tuple(row for called in one.called for row in launched.get(called, ()))
                body = cost.module.computations[one.called[1]]
                found.append(
                    Loop(
                        cost=cost,
                        instruction=one,
                        trips=one.trip_count,
                        entered=runs.times,
                        kernels=kernels,
                        is_linear=is_linear(cost.module, body),
                        encloses=any(inner.opcode in ("while", "call", "conditional") for inner in body.instructions),
                        work_ns=sum(_least_ns(row, device) for row in kernels),
                        device=device.name if known is None else known.label(),
                    )
                )
    return tuple(found)


def _everywhere(cost: ModuleCost) -> ModuleCost:
    """The same with bytes in whatever memory of the device, for a TPU's program with loops."""
    module = cost.module
    counted = any(one.opcode == "while" and one.trip_count is not None for _, one in module.instructions())
    return module_cost(replace(module, platform=None)) if module.platform == "tpu" and counted else cost


def _least_ns(row: InstructionCost, device: Device) -> float:
    plain = device.peak_flops.get("float32")  # float32's rate: these kernels are elementwise
    return 1e9 * max(row.once.bytes / device.memory_bandwidth, row.once.flops / plain if plain else 0.0)
