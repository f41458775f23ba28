"""Stages and counters of a GPU: packets of drivers (Vulkan, Mesa, Adreno, Mali) and of compute profilers."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfscope.analyzers.protos import decode
from perfscope.analyzers.readers.kineto_json.grown import Grown
from perfscope.analyzers.readers.perfetto_trace.sequences import GPU_STAGES, NAMES, Sequences, Strings
from perfscope.analyzers.readers.perfetto_trace.walk import Buffer, Fields, Int, walk
from perfscope.analyzers.trace.columns import MISSING

_SPECIFICATIONS = 7


class GpuEvents:
    """``GpuRenderStageEvent`` as columns, ``GpuCounterEvent`` as samples."""

    def __init__(self, strings: Strings, sequences: Sequences) -> None:
        self._strings, self._sequences = strings, sequences
        self.spans = Grown()
        self.samples: list[tuple[int, int, int, int, float]] = []
        """(time, clock, sequence, code of the name, value)."""
        self._stage_names: dict[int, str] = {}
        self._counters: dict[tuple[int, int], str] = {}

    def stages(
        self, buffer: Buffer, messages: Fields, time: Int, clock: Int, sequence: Int, generation: Int, shown: str
    ) -> None:
        """Spans of GPU work. One without a duration only describes stages and queues."""
        count = len(messages.row)
        fields = walk(buffer, messages.a, messages.b, shown)
        told = fields.of(_SPECIFICATIONS).messages()
        for start, end in zip(told.a.tolist(), told.b.tolist(), strict=True):
            found = decode("perfetto.Specifications", buffer.data[start:end], shown)
            self._stage_names.update({number: one.name for number, one in enumerate(found.stage)})
        duration = fields.of(2).numbers().column(count, MISSING)
        queue = fields.of(3).numbers().column(count, 0)
        queue_number = fields.of(13).numbers()
        queue[queue_number.row] = queue_number.a
        chosen = duration >= 0
        if chosen.any():
            self.spans.append(
                {
                    "time_ns": time[chosen],
                    "duration_ns": duration[chosen],
                    "clock": clock[chosen],
                    "sequence": sequence[chosen],
                    "device": fields.of(11).numbers().column(count, 0)[chosen],
                    "stream": queue[chosen],
                    "name": self._names(buffer, fields, generation, count)[chosen],
                }
            )

    def _names(self, buffer: Buffer, fields: Fields, generation: Int, count: int) -> Int:
        """The event's own name, otherwise that of its stage."""
        name = np.full(count, MISSING, np.int64)
        old = fields.of(4).numbers()
        stages = {one: self._strings.code(self._stage_names.get(one, f"stage {one}")) for one in set(old.a.tolist())}
        name[old.row] = [stages[one] for one in old.a.tolist()]
        for field, kind in ((14, GPU_STAGES), (20, NAMES)):
            held = fields.of(field).numbers()
            codes = self._sequences.codes(kind, generation[held.row], held.a)
            name[held.row] = np.where(codes == MISSING, name[held.row], codes)
        written = fields.of(17).messages()
        name[written.row] = self._strings.of_fields(written, buffer)
        name[name == MISSING] = self._strings.code("GPU work")
        return name

    def counter(self, found: Any, time: int, clock: int, sequence: int) -> None:
        """One decoded ``GpuCounterEvent``: names of counters, samples, or both."""
        for spec in found.counter_descriptor.specs:
            self._counters[sequence, spec.counter_id] = spec.name
        for sample in found.counters:
            name = self._counters.get((sequence, sample.counter_id)) or f"GPU counter {sample.counter_id}"
            code = self._strings.code(f"GPU {found.gpu_id}: {name}")
            value = sample.double_value or float(sample.int_value)
            self.samples.append((time, clock, sequence, code, value))
