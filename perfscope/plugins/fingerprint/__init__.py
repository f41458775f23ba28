"""Fingerprints: hashes of what each op reads and makes, and the first difference between two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.plugins import Plugin, Recording, load

if TYPE_CHECKING:
    from perfscope.plugins.fingerprint.command import compare_folders as compare_folders
    from perfscope.plugins.fingerprint.sources import has_fingerprints as has_fingerprints

_HERE = "perfscope.plugins.fingerprint"

PLUGIN = Plugin(
    name="fingerprint",
    options={"run": (f"{_HERE}.options:FINGERPRINT",)},
    recordings={
        "fingerprint": Recording(
            what="fingerprints of the ops (`perfscope run --fingerprint ...`)",
            recorder=f"{_HERE}.capture:FingerprintCapture",
            tools=("jax_fingerprint", "torch_fingerprint"),
            available=f"{_HERE}.capture:available",
            read=f"{_HERE}.reading:load_fingerprint",
            steps=True,
        )
    },
    results={"fingerprint": f"{_HERE}.summary:fingerprint_summary"},
    report=f"{_HERE}.summary",
    documents={"first-difference": f"{_HERE}.result"},
)

_FOR_OTHERS = {
    "compare_folders": f"{_HERE}.command:compare_folders",
    "has_fingerprints": f"{_HERE}.sources:has_fingerprints",
}
"""Names used by other plug-ins."""


def __getattr__(name: str) -> Any:
    if name not in _FOR_OTHERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_FOR_OTHERS[name])
