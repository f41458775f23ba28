"""The network beyond one node: groups of nodes under one switch, and how much thinner the links between the groups are.

From ``--topology``: a TOML file as for `perfscope analyze` with an additional table, the output of
``nvidia-smi topo -m``, or a ``topology.conf`` of Slurm.

::

    [fabric]
    nodes = 16              # nodes under one leaf switch
    oversubscription = 2    # what leaves them, relative to what they could send; 1: none
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import GIGA, KEYS, Network, Node, Target, UserTable, read_network, read_user_table
from perfscope.model.errors import DataError, UsageError

MOST_BYTES = 8 << 20
_NODE_KEYS = tuple(key for key in KEYS if key != "members")


class Fabric(Struct, frozen=True, kw_only=True):
    """Groups of nodes under one switch; without ``nodes`` all nodes see each other at the full rate."""

    nodes: int | None = None
    oversubscription: float = 1.0
    words: str = ""
    """Content of the file, for the report; empty for the defaults."""

    def seen_by(self, target: Target, group: tuple[int, ...]) -> Target:
        """The target with the network that this group of devices has."""
        if target.network is None or self.nodes is None or self.oversubscription == 1.0:
            return target
        each = max(1, target.node_devices) * self.nodes
        if len({device // each for device in group}) < 2:
            return target
        network = target.network
        return replace(target, network=replace(network, card_bandwidth=network.card_bandwidth / self.oversubscription))


def read_fabric(path: str | None, target: Target) -> tuple[Target, Fabric]:
    """The target with the links of a file, and the fabric. ``UsageError`` or ``DataError`` in one line."""
    if path is None:
        return target, Fabric()
    if target.platform == "tpu":
        raise UsageError("--topology: links of a TPU slice follow from its shape; write it in --target, e.g. v5e:4x4")
    text = _text(path)
    if re.search(r"^\s*GPU0\b.*\bGPU\d", text, re.MULTILINE) or re.search(r"^GPU\d+\s+X\b", text, re.MULTILINE):
        return _of_nvidia_smi(path, text, target)
    if re.search(r"^\s*SwitchName\s*=", text, re.MULTILINE | re.IGNORECASE):
        return _of_slurm(path, text, target)
    return _of_toml(path, target)


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise DataError(f"--topology {path}: {(error.strerror or 'cannot be read').lower()}") from error
    if len(data) > MOST_BYTES:
        raise DataError(f"--topology {path}: larger than {MOST_BYTES >> 20} MiB")
    return re.sub(r"\x1b\[[0-9;]*m", "", data.decode("utf-8", "replace"))


def _of_toml(path: str, target: Target) -> tuple[Target, Fabric]:
    file = read_user_table(path, "--topology", ("node", "network", "fabric"))
    if "node" in file:
        node = file.table("node", _NODE_KEYS)
        target = _in_nodes(target, node.count("ranks"), f"--topology {path}: node.ranks")
        given = [key for key in ("link", "bandwidth_GB_per_s", "source") if key in node]
        if given:
            rate = round(node.rate("bandwidth_GB_per_s") * GIGA)
            device = replace(target.device, link=node.text("link"), link_bandwidth=rate)
            target = replace(target, device=device, source=f"{node.text('source')}; {target.source}")
    if "network" in file and target.nodes > 1:
        target = _joined(target, read_network(file))
    return target, _fabric(file, path) if "fabric" in file else Fabric(words=f"links of {Path(path).name}")


def _fabric(file: UserTable, path: str) -> Fabric:
    table = file.table("fabric", ("nodes", "oversubscription"))
    rate = table.rate("oversubscription") if "oversubscription" in table else 1.0
    if rate < 1:
        raise table.error("oversubscription", "must be at least 1")
    nodes = table.count("nodes")
    return Fabric(
        nodes=nodes, oversubscription=rate,
        words=f"{nodes} nodes under one switch, {rate:g} times as thin between them ({Path(path).name})",
    )  # fmt: skip


def _joined(target: Target, network: Network) -> Target:
    kept = tuple(text for text in target.assumptions if not text.startswith(("nodes are joined", "inter-node network")))
    return replace(target, network=network, assumptions=kept)


def _in_nodes(target: Target, each: int, where: str) -> Target:
    """The same devices in nodes of ``each``."""
    if target.count % each:
        raise UsageError(f"{where}: nodes of {each} do not divide {target.count} devices")
    node = target.device.node
    device = target.device
    if node is None or each > node.devices:
        joined = Node(joined="switch", devices=each, host_devices=each, ports=1, source=where)
        device = replace(device, node=joined if node is None else replace(node, devices=each, host_devices=each))
    nodes = target.count // each
    return replace(target, device=device, topology=(nodes, each), network=target.network if nodes > 1 else None)


def _of_nvidia_smi(path: str, text: str, target: Target) -> tuple[Target, Fabric]:
    """Domains of GPUs that NVLink joins, links of each, and network cards of a node, from ``nvidia-smi topo -m``."""
    lines = [line for line in text.splitlines() if line.strip()]
    header = next((line.split() for line in lines if re.search(r"\bGPU0\b", line) and not line.startswith("GPU")), None)
    rows = {line.split()[0]: line.split()[1:] for line in lines if re.match(r"GPU\d+\s", line)}
    if header is None or not rows:
        raise DataError(f"--topology {path}: no matrix of nvidia-smi topo -m")
    names = [name for name in header if re.fullmatch(r"GPU\d+", name)]
    cards = [name for name in header if re.fullmatch(r"NIC\d+|mlx\d+_\d+", name)]
    domain = {name for name in names if name == "GPU0" or _nvlinks(rows, header, "GPU0", name)}
    links = max((_nvlinks(rows, header, "GPU0", name) for name in domain), default=0)
    if len(domain) < 2:
        raise UsageError(
            f"--topology {path}: NVLink joins GPU0 to no other of {len(names)} GPUs; a plan over PCIe alone needs the "
            "rate of the links: write it in a TOML file, node.bandwidth_GB_per_s"
        )
    target = _in_nodes(target, len(domain), f"--topology {path}")
    device = target.device
    node = device.node
    if node is not None and node.ports and device.link_bandwidth and links < node.ports:
        scaled = round(device.link_bandwidth * links / node.ports)
        target = replace(target, device=replace(device, link_bandwidth=scaled))
    if cards and target.network is not None:
        target = replace(target, network=replace(target.network, cards=len(cards) * len(domain) // len(names) or 1))
    words = f"{len(domain)} GPUs joined by {links} links each, {len(cards)} network cards ({Path(path).name})"
    return target, Fabric(words=words)


def _nvlinks(rows: dict[str, list[str]], header: list[str], one: str, other: str) -> int:
    """Links between two GPUs of the matrix; 0 if it is not NVLink."""
    cells, column = rows.get(one, []), header.index(other)
    match = re.fullmatch(r"NV(\d+)", cells[column]) if column < len(cells) else None
    return int(match[1]) if match else 0


def _of_slurm(path: str, text: str, target: Target) -> tuple[Target, Fabric]:
    """Nodes of the smallest leaf switch; Slurm's file has no rates that can be used, so no oversubscription."""
    leaves, above = list[int](), set[str]()
    for line in text.splitlines():
        keys = {key.lower(): value for key, value in re.findall(r"(\w+)\s*=\s*(\S+)", line.split("#")[0])}
        if "switchname" not in keys:
            continue
        if "nodes" in keys:
            leaves.append(_number_of_hosts(keys["nodes"]))
        above |= {keys["switchname"]} if "switches" in keys else set()
    if not leaves:
        raise DataError(f"--topology {path}: no switch has Nodes=")
    if len(leaves) > 1 and not above:
        raise UsageError(
            f"--topology {path}: {len(leaves)} switches and none that joins them: a job of {target.nodes} nodes needs "
            "a line with Switches="
        )
    if sum(leaves) < target.nodes:
        raise UsageError(f"--topology {path}: has {sum(leaves)} nodes, and {target.asked} needs {target.nodes}")
    nodes = min(leaves)
    return target, Fabric(
        nodes=nodes, words=f"{nodes} nodes under one switch ({Path(path).name}); rates not in the file"
    )


def _number_of_hosts(text: str) -> int:
    """Hosts of an expression of Slurm: ``n[1-16,20],m3``."""
    count = 0
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text):
        inner = re.search(r"\[([^\]]*)\]", part)
        if inner is None:
            count += 1
            continue
        for item in inner[1].split(","):
            first, dash, last = item.partition("-")
            if not first.isdigit() or (dash and not last.isdigit()):
                raise DataError(f"--topology: not a list of hosts: {text[:60]}")
            count += int(last) - int(first) + 1 if dash else 1
    return count
