"""A Kineto trace of the CPU turned into one of a GPU: the same ops, with launches, kernels, copies and waits."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]
STREAM = 7
DEVICE = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_754_820_096, "numSms": 132}
LAUNCH_US = 5.0
"""Host time of an op that only launches."""
DROPPED = ("aten::as_strided", "aten::fill_", "aten::matmul", "aten::resolve_conj", "aten::sum")
"""Ops around those that are kept: they would not fit into the shorter ones."""


def as_on_a_gpu(trace: dict[str, Any], copy_bytes: int, *, pinned: bool) -> None:
    """In place: a matrix product is launched and runs on the device for as long as it took; a read waits for it."""
    trace["deviceProperties"] = [DEVICE]
    events: list[Event] = [event for event in trace["traceEvents"] if event["name"] not in DROPPED]
    added: list[Event] = []
    launched: Event | None = None
    for event in sorted((event for event in events if event.get("cat") == "cpu_op"), key=lambda event: event["ts"]):
        begin, end, number = event["ts"], event["ts"] + event["dur"], 10_000 + 2 * len(added)
        match event["name"]:
            case "aten::mm":
                added += _work(event, number, "cudaLaunchKernel", "sm90_xmma_gemm_f32f32", begin + 1.0, end)
                event["dur"], launched = LAUNCH_US, event
            case "aten::item" | "aten::_local_scalar_dense" if launched is not None:
                event["ts"] = launched["ts"] + launched["dur"] + (1.0 if event["name"] == "aten::item" else 1.5)
                event["dur"] = end - event["ts"]
                if event["name"] == "aten::_local_scalar_dense":
                    name = "Memcpy DtoH (Device -> Pageable)"
                    added += _work(event, number, "cudaMemcpyAsync", name, end - 0.2, end - 0.1, 4)
                    wait = {"ts": event["ts"] + 1.0, "dur": event["dur"] - 1.05}
                    added.append(_call(event, number + 1, "cudaStreamSynchronize") | wait)
            case "aten::copy_":
                name = f"Memcpy HtoD ({'Pinned' if pinned else 'Pageable'} -> Device)"
                added += _work(event, number, "cudaMemcpyAsync", name, begin + 1.0, end - 0.1, copy_bytes)
    for event in events:
        if event["name"] == "[memory]":
            event["args"] |= {"Device Type": 1, "Device Id": 0}
    trace["traceEvents"] = events + added


def _call(op: Event, number: int, name: str) -> Event:
    arguments = {"External id": op["args"]["External id"], "correlation": number}
    place = {"pid": op["pid"], "tid": op["tid"], "ts": op["ts"] + 0.2, "dur": 0.5}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "args": arguments, **place}


def _work(
    op: Event, number: int, call: str, name: str, start: float, end: float, size: int | None = None
) -> list[Event]:
    """The call that launches and what it launches: a kernel, or a copy of ``size`` bytes."""
    host = _call(op, number, call)
    arguments = {**host["args"], "device": 0, "context": 1, "stream": STREAM}
    if size is not None:
        arguments["bytes"] = size
    device = {"ph": "X", "cat": "kernel" if size is None else "gpu_memcpy", "name": name, "args": arguments}
    return [host, device | {"pid": 0, "tid": STREAM, "ts": start, "dur": end - start}]
