"""Device time as rows: one per device, or one per group of similar devices if there are many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from perfscope.analyzers.time import DeviceParts
from perfscope.dashboards.report.blocks import Column, Section, table
from perfscope.dashboards.report.charts import device_lanes
from perfscope.dashboards.report.renderers.values import span_text
from perfscope.model.trace import MISSING
from perfscope.model.units import format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.analyzers.engine import Analysis


MOST_DEVICE_ROWS = 8
"""Most devices shown one by one: one node's worth. More are grouped."""

FOLD_SPAN = 0.01
"""Relative difference of spans up to which devices are grouped: 1%, the usual spread between ranks."""


class DeviceRow(Struct, frozen=True, kw_only=True):
    """The time of one device, or the medians of several similar devices."""

    ranks: str
    device: str
    count: int
    span_ns: int
    compute_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int

    def share(self, part_ns: int) -> float | None:
        """Share of the span, 0 to 1."""
        return part_ns / self.span_ns if self.span_ns else None

    def shares(self) -> tuple[str, str, str, str]:
        """Compute, exposed communication, exposed copy and idle, in percent of the span."""
        parts = (self.compute_ns, self.exposed_communication_ns, self.exposed_copy_ns, self.idle_ns)
        compute, communication, copy, idle = (format_share(part, self.span_ns) for part in parts)
        return compute, communication, copy, idle


def device_rows(analysis: Analysis) -> tuple[DeviceRow, ...]:
    """The rows of an analysis: over the steps if their account is known, else over each device's span.

    Empty if the device data cannot be true.
    """
    if analysis.doubts and not analysis.accounts:
        return ()
    shares = [
        DeviceParts(
            rank=account.rank,
            ordinal=account.ordinal,
            name=account.name,
            span_ns=account.whole_ns,
            compute_ns=account.total_ns["compute"],
            exposed_communication_ns=account.total_ns["exposed_communication"],
            exposed_copy_ns=account.total_ns["exposed_copy"],
            idle_ns=account.whole_ns - account.busy_ns,
        )
        for account in analysis.accounts
        if account.device != MISSING
    ]
    return fold_devices(shares or analysis.devices)


def fold_devices(devices: Sequence[DeviceParts]) -> tuple[DeviceRow, ...]:
    """One row per device; with many devices, one row per group whose spans agree to one percent."""
    if len(devices) <= MOST_DEVICE_ROWS:
        return tuple(_device_row([device]) for device in devices)
    groups: dict[tuple[object, ...], list[DeviceParts]] = {}
    for device in devices:
        parts = (device.compute_ns, device.exposed_communication_ns, device.exposed_copy_ns)
        alike = tuple(round(100 * part / device.span_ns) if device.span_ns else 0 for part in parts)
        near = [key for key in groups if key[:-1] == (device.name, alike) and _same_span(groups[key][0], device)]
        groups.setdefault(near[0] if near else (device.name, alike, len(groups)), []).append(device)
    rows = sorted(groups.values(), key=lambda group: -sum(device.idle_ns for device in group) / len(group))
    # the most idle devices keep their rows; the others are represented by their median
    if len(rows) > MOST_DEVICE_ROWS:
        kept = MOST_DEVICE_ROWS - 1
        rows = [*rows[:kept], [device for group in rows[kept:] for device in group]]
    return tuple(_device_row(group) for group in rows)


def _same_span(first: DeviceParts, second: DeviceParts) -> bool:
    return abs(first.span_ns - second.span_ns) <= FOLD_SPAN * max(first.span_ns, second.span_ns)


def _device_row(group: Sequence[DeviceParts]) -> DeviceRow:
    ranks = [device.rank for device in group if device.rank is not None]
    names = sorted({sanitize(device.name) or "device" for device in group})
    label = names[0] if len(names) == 1 else f"{len(names)} kinds"
    ordinals = span_text([device.ordinal for device in group])
    middle = sorted(group, key=lambda device: device.idle_ns)[len(group) // 2]
    return DeviceRow(
        ranks=span_text(ranks) if ranks else "-",
        device=f"{label} ({ordinals})" if len(group) == 1 else f"{label} (x{len(group)}, median)",
        count=len(group),
        span_ns=middle.span_ns,
        compute_ns=middle.compute_ns,
        exposed_communication_ns=middle.exposed_communication_ns,
        exposed_copy_ns=middle.exposed_copy_ns,
        idle_ns=middle.idle_ns,
    )


COLUMNS: tuple[Column[DeviceRow], ...] = (
    Column("rank", lambda row: "" if row.ranks == "-" else row.ranks),
    Column("device", lambda row: row.device),
    Column("span", lambda row: row.span_ns, "ns"),
    Column("compute", lambda row: row.share(row.compute_ns), "share"),
    Column("exposed comm", lambda row: row.share(row.exposed_communication_ns), "share"),
    Column("exposed copy", lambda row: row.share(row.exposed_copy_ns), "share"),
    Column("idle", lambda row: row.share(row.idle_ns), "share"),
)


def device_sections(rows: Sequence[DeviceRow]) -> tuple[Section, ...]:
    """Device time as bars and numbers; no section if no device did work."""
    if not rows:
        return ()
    return (
        Section(title="Where the device time goes", blocks=(device_lanes(rows), table(COLUMNS, rows, few=len(rows)))),
    )
