"""Attributes of a custom call in HLO that hold the cost which its author states."""

from __future__ import annotations

STATED = {
    "flops": "perfscope_flops",
    "transcendentals": "perfscope_transcendentals",
    "bytes_accessed": "perfscope_bytes",
}
"""Field of ``pl.CostEstimate`` -> name of the attribute, whose value is a decimal number."""
