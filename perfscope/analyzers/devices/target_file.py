"""A target of one's own, as a TOML file: a known device with other numbers, or one that no table has.

::

    device = "h100"                # what it is like: a name of --target, without a number
    name = "H100 of our cluster"   # may be left out, like all that follows
    nodes = 4                      # GPUs: nodes, and devices of each
    devices = 8
    slice = "2x4"                  # TPUs, in place of the two
    hosts = 2                      # TPUs: hosts of the slice, where it is not of the usual machines
    memory = "40GiB"               # of one device
    memory_bandwidth_GB_per_s = 3000
    cores = 114
    clock_GHz = 1.7
    l2 = "50MiB"
    source = "measured on node 7"  # where these numbers are from; asked for where one of them is told

    [peak_TFLOP_per_s]             # dense, by dtype: float32, tf32, bfloat16, float16, fp8, int8
    bfloat16 = 800

    [link]                         # what joins the devices of a node
    name = "NVLink 4"
    bandwidth_GB_per_s = 300       # what one device sends over all of them, one direction

    [network]                      # what joins the nodes, as in a file for --topology
    link = "InfiniBand NDR"
    cards = 8
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfscope.analyzers.devices.device import GIGA, TERA, Device
from perfscope.analyzers.devices.node import Node
from perfscope.analyzers.devices.sizes import read_bytes_text
from perfscope.analyzers.devices.target import Target
from perfscope.analyzers.devices.target_text import chips, gpus, named_target
from perfscope.analyzers.devices.topology import read_network
from perfscope.model.errors import UsageError

MOST_BYTES = 1 << 16
"""A target takes some hundred bytes."""
DTYPES = ("float32", "tf32", "bfloat16", "float16", "fp8", "int8")
NUMBERS = ("memory_bandwidth_GB_per_s", "cores", "clock_GHz", "l2")
KEYS = ("device", "name", "nodes", "devices", "slice", "hosts", "memory", *NUMBERS, "source", "peak_TFLOP_per_s",
        "link", "network")  # fmt: skip
LINK_KEYS = ("name", "bandwidth_GB_per_s")


def read_target(path: str) -> Target:
    """The target that a file tells. ``AskedWronglyError`` in one line for whatever is wrong with it."""
    where = f"--target {path}"
    told = _table(path, where)
    _known(where, told, KEYS, "")
    base = _text(where, told, "device", 200)
    like = named_target(base)
    if like.chips > 1:
        raise UsageError(f"{where}: device: {base[:40]}: a device without a number; nodes and devices tell how many")
    device, said = _device(where, told, like.device)
    shown = Path(path).name
    if like.platform == "tpu":
        for key in ("nodes", "devices", "network"):
            if key in told:
                raise UsageError(f"{where}: {key}: TPUs are told by slice")
        hosts = _count(where, told, "hosts", 1) if "hosts" in told else None
        found = chips(shown, device, _slice(where, told, base), hosts=hosts)
    else:
        for key in ("slice", "hosts"):
            if key in told:
                raise UsageError(f"{where}: {key}: GPUs are told by nodes and devices")
        each = _count(where, told, "devices", 1)
        if device.node is not None and each > device.node.devices:
            device = replace(device, node=replace(device.node, devices=each, host_devices=each, source=shown))
        found = gpus(shown, device, _count(where, told, "nodes", 1), each)
    if "network" in told:
        network = read_network(where, told["network"])
        kept = tuple(one for one in found.assumptions if not one.startswith("nodes are joined"))
        kept = tuple(one for one in kept if not one.startswith("nobody said what joins the nodes"))
        found = replace(found, network=network if found.nodes > 1 else None, assumptions=kept)
    if "memory" in told:
        found = replace(found, memory_bytes=read_bytes_text(_text(where, told, "memory", 60), f"{where}: memory"))
    return replace(found, assumptions=(*like.assumptions, *said, *found.assumptions))


def _table(path: str, where: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{where}: larger than {MOST_BYTES >> 10} KiB, no target")
        return tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {(error.strerror or 'error').lower()}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: no TOML: {str(error)[:200]}") from error


def _device(where: str, told: dict[str, Any], like: Device) -> tuple[Device, tuple[str, ...]]:
    """The device with the file's numbers, and a sentence of what it is like."""
    changed: dict[str, Any] = {}
    if "memory_bandwidth_GB_per_s" in told:
        changed["memory_bandwidth"] = round(_number(where, told, "memory_bandwidth_GB_per_s") * GIGA)
    if "cores" in told:
        changed["cores"] = _count(where, told, "cores", 1)
    if "clock_GHz" in told:
        changed["clock_hz"] = round(_number(where, told, "clock_GHz") * GIGA)
    if "l2" in told:
        changed["l2_bytes"] = read_bytes_text(_text(where, told, "l2", 60), f"{where}: l2")
    if "memory" in told:
        changed["memory_bytes"] = read_bytes_text(_text(where, told, "memory", 60), f"{where}: memory")
    if "peak_TFLOP_per_s" in told:
        peaks = _subtable(where, told, "peak_TFLOP_per_s", DTYPES)
        rates = {name: round(_number(where, peaks, name, "peak_TFLOP_per_s.") * TERA) for name in peaks}
        changed["peak_flops"] = {**like.peak_flops, **rates}
    if "link" in told:
        link = _subtable(where, told, "link", LINK_KEYS)
        changed["link"] = _text(where, link, "name", 60, "link.")
        changed["link_bandwidth"] = round(_number(where, link, "bandwidth_GB_per_s", "link.") * GIGA)
    numbers = [name for name in (*NUMBERS, "peak_TFLOP_per_s", "link") if name in told]
    name = _text(where, told, "name", 60) if "name" in told else like.name
    if not numbers:
        return replace(like, name=name, **changed), ()
    if "source" not in told:
        raise UsageError(f"{where}: source is missing: where is {numbers[0]} from?")
    source = _text(where, told, "source", 500)
    changed["source"] = f"{source}; the rest: {like.source}"
    if "link" in told and like.node is None:
        each = _count(where, told, "devices", 1)
        changed["node"] = Node(joined="switch", devices=each, host_devices=each, ports=1, source=source)
    said = f"{name} is {like.name} with numbers of the file ({', '.join(numbers)}); what it leaves out is {like.name}'s"
    return replace(like, name=name, **changed), (said,)


def _slice(where: str, told: dict[str, Any], base: str) -> tuple[int, ...]:
    if "slice" not in told:
        return named_target(base).topology
    return named_target(f"{base}:{_text(where, told, 'slice', 40)}").topology


def _known(where: str, told: dict[str, Any], keys: tuple[str, ...], table: str) -> None:
    unknown = next((key for key in told if key not in keys), None)
    if unknown is not None:
        names = ", ".join(table + key for key in keys)
        raise UsageError(f"{where}: {table}{unknown[:60]}: no such key; known: {names}")


def _subtable(where: str, told: dict[str, Any], key: str, keys: tuple[str, ...]) -> dict[str, Any]:
    found = told[key]
    if not isinstance(found, dict) or not found:
        raise UsageError(f"{where}: {key} is no table")
    _known(where, found, keys, key + ".")
    return found


def _text(where: str, told: dict[str, Any], key: str, longest: int, table: str = "") -> str:
    value = told.get(key)
    if not isinstance(value, str) or not value.strip() or len(value) > longest or not value.isprintable():
        raise UsageError(f"{where}: {table}{key} is no text of a line")
    return value.strip()


def _count(where: str, told: dict[str, Any], key: str, default: int) -> int:
    value = told.get(key, default)
    if type(value) is not int or not 1 <= value <= 1 << 16:
        raise UsageError(f"{where}: {key} is no number from 1 to 65,536")
    return value


def _number(where: str, told: dict[str, Any], key: str, table: str = "") -> float:
    value = told.get(key)
    if type(value) not in (int, float) or not math.isfinite(float(value)) or not 0 < value < 1e9:  # type: ignore[arg-type,operator]
        raise UsageError(f"{where}: {table}{key} is no rate")
    return float(value)  # type: ignore[arg-type]
