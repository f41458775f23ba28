"""What is said of a bargain between time and memory: why it is one or not, and what to do."""

from __future__ import annotations

from perfscope.analyzers.advice.words import code_for, describe
from perfscope.analyzers.facts.remat_bargain import Bargain
from perfscope.model.units import format_bytes, format_ns


def why(bargain: Bargain) -> str:
    """Why the time is spent for nothing, or what it buys: the end of a title."""
    today, kept = bargain.today.peak_bytes, bargain.kept.peak_bytes
    bought = format_bytes(max(0, kept - today))
    if bargain.verdict == "elsewhere":
        return (
            f"the peak lies elsewhere, where no checkpointed region is alive: {format_bytes(kept)} with and without it"
        )
    if bargain.verdict == "not lowered":
        return f"it does not lower the peak: {format_bytes(kept)} with and without it (modelled)"
    room = format_bytes(bargain.room_bytes or 0)
    if bargain.verdict == "headroom":
        return f"it takes {bought} off a peak that has room: {format_bytes(kept)} without it, {room} to use (modelled)"
    if bargain.verdict == "dominated" and bargain.better is not None:
        return (
            f"{describe(bargain.model, bargain.better)} has as low a peak ({format_bytes(bargain.better.peak_bytes)}) "
            f"and runs {format_ns(bargain.better.simulation.recompute_ns)} again instead of "
            f"{format_ns(bargain.today.recompute_ns)} (modelled)"
        )
    if bargain.verdict == "headroom for some" and bargain.better is not None:
        return (
            f"with {room} to use, {describe(bargain.model, bargain.better)} is enough "
            f"({format_bytes(bargain.better.peak_bytes)}, modelled)"
        )
    return f"it takes {bought} off the peak (modelled); whether that memory would be free is not known"


def what_to_do(bargain: Bargain) -> str:
    """What to write instead."""
    if bargain.verdict in ("elsewhere", "not lowered", "headroom"):
        return "Take the checkpointing away: call the modules directly. "
    if bargain.better is not None:
        code = "\n".join(code_for(bargain.model, bargain.better))
        return f"Checkpoint less: {describe(bargain.model, bargain.better)}.\n{code}\n"
    return (
        "Keep what fits: perfscope advise memory RUN --budget BYTES lists what each choice of regions needs and takes. "
    )
