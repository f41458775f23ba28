"""A target as people type it (``h100``, ``h100x8``, ``h100x16`` (two nodes), ``v5e:2x4@2hosts``) or as a TOML file.

A file names a known device with other numbers, or an unknown device::

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
    source = "measured on node 7"  # where these numbers are from; required with any of them

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

import re
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perfscope.analyzers.devices import DEVICES, find_device
from perfscope.analyzers.devices.device import GIGA, TERA, Device, Node
from perfscope.analyzers.devices.target import Platform, Target
from perfscope.analyzers.devices.topology import (
    Network,
    closes,
    default_shape,
    host_shape,
    named_link,
    read_network,
    slice_shape,
)
from perfscope.analyzers.devices.user_table import UserTable, read_user_table
from perfscope.model.errors import UsageError

_UNITS = {
    "": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
MOST_BYTES = 1 << 50

MOST_DEVICES = 1 << 16

LONGEST = 200
"""Maximum number of characters of a name."""

NAMES: dict[str, str] = {
    "a10": "A10", "a100": "A100 SXM 80GB", "a10040gb": "A100 40GB", "a10080gb": "A100 SXM 80GB",
    "a100pcie": "A100 PCIe 80GB", "a100sxm": "A100 SXM 80GB", "a10g": "A10G", "a30": "A30", "a40": "A40",
    "b200": "B200", "b300": "B300", "gb200": "GB200", "gb300": "GB300", "h100": "H100 SXM", "h100nvl": "H100 NVL",
    "h100pcie": "H100 PCIe", "h20": "H20", "h200": "H200", "h200nvl": "H200 NVL", "h800": "H800 SXM",
    "h800pcie": "H800 PCIe", "l4": "L4", "l40s": "L40S", "mi210": "MI210", "mi250": "MI250X (one GCD)",
    "mi250x": "MI250X (one GCD)", "mi300": "MI300X", "mi300a": "MI300A", "mi300x": "MI300X", "mi325": "MI325X",
    "mi325x": "MI325X", "mi350": "MI350X", "mi350x": "MI350X", "mi355": "MI355X", "mi355x": "MI355X",
    "rtx2080ti": "RTX 2080 Ti", "rtx3090": "RTX 3090", "rtx4090": "RTX 4090", "rtx5090": "RTX 5090",
    "rtxpro6000": "RTX PRO 6000 Workstation", "rtxpro6000server": "RTX PRO 6000 Server", "t4": "T4",
    "trainium2": "Trainium2", "trn2": "Trainium2", "v100": "V100 SXM2", "v100pcie": "V100 PCIe", "v100s": "V100S PCIe",
    "v100sxm": "V100 SXM2",
}  # fmt: skip
"""Default variant of each GPU model."""

CHIPS: dict[str, str] = {
    "7x": "TPU7x (one of two)", "ironwood": "TPU7x (one of two)", "trillium": "TPU v6e", "tpu7x": "TPU7x (one of two)",
    "v4": "TPU v4", "v5e": "TPU v5e", "v5lite": "TPU v5e", "v5litepod": "TPU v5e", "v5p": "TPU v5p", "v6e": "TPU v6e",
    "v6lite": "TPU v6e", "v7": "TPU7x (one of two)", "v7x": "TPU7x (one of two)",
}  # fmt: skip

_BY_CORES = ("v4", "v5p")
"""``v5p-8``, an accelerator type of the cloud, counts TensorCores: four chips."""

DTYPES = ("float32", "tf32", "bfloat16", "float16", "fp8", "int8")

NUMBERS = ("memory_bandwidth_GB_per_s", "cores", "clock_GHz", "l2")

KEYS = ("device", "name", "nodes", "devices", "slice", "hosts", "memory", *NUMBERS, "source", "peak_TFLOP_per_s",
        "link", "network")  # fmt: skip

_PLATFORM_KEYS = {
    "gpu": (("slice", "hosts"), "GPUs are given by nodes and devices"),
    "tpu": (("nodes", "devices", "network"), "TPUs are given by slice"),
}
"""Keys of the other platform, and the correct keys instead."""

_NETWORK_ASSUMPTIONS = ("nodes are joined", "inter-node network not specified")
"""Beginnings of the assumptions that the network of a file replaces."""


def read_bytes_text(text: str, option: str) -> int:
    """Return the bytes of a size. ``option`` begins the error: ``UsageError`` if ``text`` is not a size."""
    match = re.fullmatch(r"\s*(\d{1,16}(?:\.\d{1,9})?)\s*([a-z]*)\s*", text.lower()) if len(text) < 64 else None
    unit = None if match is None else _UNITS.get(match[2])
    if match is None or unit is None:
        raise UsageError(f"{option} {text[:40]}: not a size; write a number with its unit, e.g. 40GiB")
    size = round(float(match[1]) * unit)
    if not 1 << 20 <= size <= MOST_BYTES:
        raise UsageError(f"{option} {text[:40]}: must be from 1 MiB to 1 PiB")
    return size


def parse_target(text: str, memory: str | None = None) -> Target:
    """Parse ``--target`` (and ``--memory``): a name in any case and spacing, or the path of a TOML file.

    ``UsageError`` in one line for anything else, with the closest names.
    """
    asked = text.strip()
    target = read_target(asked) if asked.lower().endswith(".toml") else named_target(asked)
    return target if memory is None else with_memory(target, memory)


def named_target(asked: str) -> Target:
    """Return the target of a device name, optionally followed by a number of devices or a topology."""
    if not asked or len(asked) > LONGEST or not asked.isprintable():
        raise UsageError("--target: give the name of a device, e.g. h100, h100x8 or v5e:2x4")
    tight = re.sub(r"\s+", "", asked.lower())
    target = _tpu(asked, tight)
    if target is None and "@" in asked:
        raise UsageError(f"--target {asked}: only TPU slices have hosts; for GPUs write nodes x devices")
    return target or _gpu(asked) or _refuse(asked)


def with_memory(target: Target, memory: str) -> Target:
    """Return the same devices with another amount of memory: a smaller variant, or the rest next to other programs."""
    text = f"each device has {memory.strip()} of memory (--memory)"
    if target.platform == "tpu":
        text += "; the compiler does not use this value: it plans for the chip's memory"
    return replace(target, memory_bytes=read_bytes_text(memory, "--memory"), assumptions=(*target.assumptions, text))


def gpus(asked: str, device: Device, nodes: int, each: int, texts: tuple[str, ...] = ()) -> Target:
    """Return GPUs in equal nodes."""
    count = nodes * each
    if not 1 <= count <= MOST_DEVICES:
        raise UsageError(f"--target {asked}: {count} devices; must be 1 to {MOST_DEVICES:,}")
    network, assumed = _network(device, nodes, each)
    return Target(
        asked=asked, device=device, count=count, topology=(nodes, each), platform="gpu",
        memory_bytes=device.memory_bytes, network=network, source=_source(device), assumptions=(*texts, *assumed),
    )  # fmt: skip


def chips(
    asked: str, device: Device, shape: tuple[int, ...], texts: tuple[str, ...] = (), *, hosts: int | None = None
) -> Target:
    """Return a slice of TPUs. ``hosts``: number of hosts, if the user specified it."""
    platform: Platform = "tpu"
    each = devices_of_a_chip(device)
    count = prod(shape) * each
    if not 1 <= count <= MOST_DEVICES:
        raise UsageError(f"--target {asked}: {count} devices; must be 1 to {MOST_DEVICES:,}")
    node = device.node
    if node is not None and count > node.devices:
        raise UsageError(
            f"--target {asked}: {count} devices of {device.name}; a slice has at most {node.devices:,}, "
            "and several slices are not modelled"
        )
    host = host_shape(asked, device, shape, hosts)
    if prod(shape) > 1 and hosts is None:
        texts = (*texts, _hosts_words(shape, host))
    open_axes = [str(axis) for axis in shape if axis > 2 and not closes(device, axis)]
    if open_axes and prod(shape) > 1:
        texts = (*texts, f"the slice does not close to a ring along its axes of {' and '.join(open_axes)} chips")
    return Target(
        asked=asked, device=device, count=count, topology=shape, platform=platform, host_shape=host,
        memory_bytes=device.memory_bytes, source=_source(device), assumptions=texts,
    )  # fmt: skip


def _hosts_words(shape: tuple[int, ...], host: tuple[int, ...]) -> str:
    each, number = prod(host), prod(shape) // prod(host)
    if number > 1:
        return f"{number} hosts of {each} chips: the program is that many processes"
    other = f"; {'x'.join(map(str, shape))}@2hosts are two of 4 chips" if each == 8 else ""
    return f"one host has all {each} chips{other}"


def devices_of_a_chip(device: Device) -> int:
    """Return 2 for TPU7x, else 1, because the TensorCores of other chips are one device."""
    return 2 if device.name == CHIPS["7x"] else 1


def known_names() -> tuple[str, ...]:
    """Return the device names of ``--target``, for messages and help: GPUs, followed by TPUs."""
    return (*NAMES, *CHIPS)


def _tpu(asked: str, tight: str) -> Target | None:
    tight, _, text = tight.partition("@")
    named_hosts = re.fullmatch(r"(\d{1,5})(?:hosts?)?", text)
    match = re.fullmatch(r"(?:tpu[-_:]?)?([a-z0-9]+?)(?:([:=_-])(\d+(?:x\d+)*))?", tight)
    name = None if match is None else CHIPS.get(match[1]) or CHIPS.get("tpu" + match[1])
    if match is None or name is None:
        return None
    if "@" in asked and named_hosts is None:
        raise UsageError(f"--target {asked}: write a number of hosts after @, e.g. v5e:2x4@2hosts")
    hosts = None if named_hosts is None else int(named_hosts[1])
    device = next(device for device in DEVICES if device.name == name)
    if match[3] is None:
        return chips(asked, device, default_shape(device, 1), hosts=hosts)
    sides = tuple(int(side) for side in match[3].split("x"))
    if len(sides) > 1:
        return chips(asked, device, slice_shape(asked, device, sides), hosts=hosts)
    number, texts = sides[0], tuple[str, ...]()
    if match[2] == "-" and match[1] in _BY_CORES:
        if number % 2:
            raise UsageError(
                f"--target {asked}: the number counts TensorCores, two per chip; for chips write {match[1]}:{number}"
            )
        number, texts = number // 2, (f"{match[1]}-{sides[0]} counts TensorCores: {number // 2} chips",)
    shape = default_shape(device, number, asked)
    texts = (*texts, f"{number} chips are a slice of {'x'.join(map(str, shape))}") if number > 1 else texts
    return chips(asked, device, shape, texts, hosts=hosts)


def _gpu(asked: str) -> Target | None:
    spelled = asked.lower()
    name, numbers = spelled, list[int]()
    front = re.fullmatch(r"(\d{1,7})\s*[x*]\s*([a-z].*)", spelled)
    if front is not None:
        name, numbers = front[2], [int(front[1])]
    device = _device(name)
    while device is None and len(numbers) < 2:
        match = re.fullmatch(r"(.*[^\s_:-])[\s_:-]*[x*:]\s*(\d{1,7})", name)
        if match is None:
            return None
        name, numbers = match[1], [int(match[2]), *numbers]
        device = _device(name)
    if device is None:
        return None
    texts = _edition(name, device)
    if len(numbers) == 2:
        if device.node is not None and numbers[1] > device.node.devices:
            raise UsageError(
                f"--target {asked}: {numbers[1]} devices per node; {device.name} has nodes of {device.node.devices}"
            )
        return gpus(asked, device, numbers[0], numbers[1], texts)
    count = numbers[0] if numbers else 1
    device, joined = _in_a_node(device) if count > 1 else (device, ())
    most = device.node.devices if device.node is not None else 8
    if count > most and count % most:
        raise UsageError(
            f"--target {asked}: {count} devices do not fill nodes of {most}; "
            f"write nodes x devices, e.g. {name}x{-(-count // most)}x{most}"
        )
    nodes = max(1, count // most)
    return gpus(asked, device, nodes, count // nodes, (*texts, *joined))


def _device(name: str) -> Device | None:
    plain = _plain(name)
    table = NAMES.get(plain)
    if table is None and re.search(r"[x*:]\s*\d+$", name):
        # a number of devices: "h100 pcie x8" is not a name, although a driver's pattern matches a part of it
        return None
    wanted = plain if table is None else _plain(table)
    device = next((device for device in DEVICES if _plain(device.name) == wanted), None) or find_device(name)
    return None if device is None or device.vendor == "Google" else device


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia").removeprefix("amd").removeprefix("instinct")


def _in_a_node(device: Device) -> tuple[Device, tuple[str, ...]]:
    """Return the variant that comes in nodes, if the table's row covers several variants."""
    if device.name != "A100 40GB":
        return device, ()
    sold = next(device for device in DEVICES if device.name == "A100 SXM 80GB")
    joined = replace(device, link=sold.link, link_bandwidth=sold.link_bandwidth, node=sold.node)
    return joined, (f"several {device.name} are taken for the SXM module, joined by {sold.link}",)


def _edition(name: str, device: Device) -> tuple[str, ...]:
    """Return the assumption about the product, if a name covers several products."""
    plain = _plain(name)
    if device.vendor == "AWS":
        return (
            f"no kernel of {device.name} was measured: shares of its peaks are those of NVIDIA GPUs, and no compiler "
            "for it is known here",
        )
    if plain in ("a100", "h100", "h800", "v100", "mi250", "mi300", "rtxpro6000") and plain != _plain(device.name):
        return (f"{plain} is taken for {device.name}",)
    return ()


def _network(device: Device, nodes: int, each: int) -> tuple[Network | None, tuple[str, ...]]:
    texts: tuple[str, ...] = ()
    if each > 1 and device.node is None:
        texts = (f"intra-node links of {device.name} not specified: collectives are not timed",)
    if nodes == 1:
        return None, texts
    usual = device.network
    link = None if usual is None else named_link(usual.link)
    if usual is None or link is None:
        return None, (*texts, "inter-node network not specified: collectives between them are not timed")
    cards = max(1, usual.cards * each // (device.node.devices if device.node is not None else each))
    network = Network(link=link.name, cards=cards, card_bandwidth=float(link.bandwidth), source=usual.source)
    gigabits = link.bandwidth * 8 // 10**9
    return network, (
        *texts,
        f"nodes are joined by {cards} cards of {link.name} ({gigabits} Gb/s) each, as usual for {device.name}; "
        "a target file can override it",
    )


def _source(device: Device) -> str:
    parts = [device.source, device.chip_source, None if device.node is None else device.node.source]
    return "; ".join(dict.fromkeys(part for part in parts if part))


def _refuse(asked: str) -> Target:
    tight = re.sub(r"[^a-z0-9]", "", asked.lower())
    bare = re.sub(r"x\d+$", "", tight) or tight
    names = known_names()
    holding = [name for name in names if len(bare) > 1 and bare in name]
    close = list(dict.fromkeys([*holding, *get_close_matches(bare, names, n=4, cutoff=0.5)]))[:6]
    hint = (
        f"did you mean {', '.join(close)}?" if close else "known: h100, h200, b200, gb200, a100, l4, mi300x, v5e, ..."
    )
    raise UsageError(f"--target {asked[:60]}: unknown device; {hint}")


def read_target(path: str) -> Target:
    """Read a target from a TOML file. ``UsageError`` in one line for invalid content."""
    file = read_user_table(path, "--target", KEYS)
    base = file.text("device", 200)
    like = named_target(base)
    if like.chips > 1:
        raise UsageError(
            f"{file.where}: device: {base[:40]}: give a device without a number; nodes and devices set the count"
        )
    device, texts = _file_device(file, like.device)
    shown = Path(path).name
    wrong, advice = _PLATFORM_KEYS[like.platform]
    unfit = next((key for key in wrong if key in file), None)
    if unfit is not None:
        raise UsageError(f"{file.where}: {unfit}: {advice}")
    if like.platform == "tpu":
        shape = named_target(f"{base}:{file.text('slice', 40)}").topology if "slice" in file else like.topology
        target = chips(shown, device, shape, hosts=file.count("hosts") if "hosts" in file else None)
    else:
        each = file.count("devices", 1)
        if device.node is not None and each > device.node.devices:
            device = replace(device, node=replace(device.node, devices=each, host_devices=each, source=shown))
        target = gpus(shown, device, file.count("nodes", 1), each)
    if "network" in file:
        network = read_network(file)
        kept = tuple(assumption for assumption in target.assumptions if not assumption.startswith(_NETWORK_ASSUMPTIONS))
        target = replace(target, network=network if target.nodes > 1 else None, assumptions=kept)
    if "memory" in file:
        target = replace(target, memory_bytes=_size(file, "memory"))
    return replace(target, assumptions=(*like.assumptions, *texts, *target.assumptions))


def _size(file: UserTable, key: str) -> int:
    return read_bytes_text(file.text(key, 60), f"{file.where}: {key}")


def _file_device(file: UserTable, like: Device) -> tuple[Device, tuple[str, ...]]:
    """Return the device with the file's numbers, and a sentence that names the base device."""
    changed: dict[str, Any] = {}
    if "memory_bandwidth_GB_per_s" in file:
        changed["memory_bandwidth"] = round(file.rate("memory_bandwidth_GB_per_s") * GIGA)
    if "cores" in file:
        changed["cores"] = file.count("cores")
    if "clock_GHz" in file:
        changed["clock_hz"] = round(file.rate("clock_GHz") * GIGA)
    for key, name in {"l2": "l2_bytes", "memory": "memory_bytes"}.items():
        if key in file:
            changed[name] = _size(file, key)
    if "peak_TFLOP_per_s" in file:
        peaks = file.table("peak_TFLOP_per_s", DTYPES)
        rates = {name: round(peaks.rate(name) * TERA) for name in DTYPES if name in peaks}
        changed["peak_flops"] = {**like.peak_flops, **rates}
    if "link" in file:
        link = file.table("link", ("name", "bandwidth_GB_per_s"))
        changed["link"] = link.text("name", 60)
        changed["link_bandwidth"] = round(link.rate("bandwidth_GB_per_s") * GIGA)
    numbers = [name for name in (*NUMBERS, "peak_TFLOP_per_s", "link") if name in file]
    name = file.text("name", 60) if "name" in file else like.name
    if not numbers:
        return replace(like, name=name, **changed), ()
    if "source" not in file:
        raise UsageError(f"{file.where}: source is missing: where is {numbers[0]} from?")
    source = file.text("source")
    changed["source"] = f"{source}; the rest: {like.source}"
    if "link" in file and like.node is None:
        each = file.count("devices", 1)
        changed["node"] = Node(joined="switch", devices=each, host_devices=each, ports=1, source=source)
    text = f"{name} is {like.name} with {', '.join(numbers)} from the file; other values are those of {like.name}"
    return replace(like, name=name, **changed), (text,)
