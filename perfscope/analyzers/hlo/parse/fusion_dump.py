"""XLA's own account of its fusions: ``*.priority_fusion_dump.txt``, protobuf text of the priority-fusion pass.

```
fusion_steps {
  producer_ineligible {
    producer_name: "div.16.0"
    reason: "the consumer is not fusible"
  }
}
```
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfscope.analyzers.hlo.module import HloModule, Instruction

_FIELD = re.compile(r'\s*(producer_name|consumer_name|fusion_name|reason): "((?:[^"\\]|\\.)*)"\s*$')
_COPY = re.compile(r"(.*\.\d+)\.\d+$")
"""Name inside a fusion: ``select.35.1`` for ``select.35.0`` of the dump."""

MAX_REFUSALS = 1 << 20
"""Maximum number of entries, more than any program has kernels; reading stops there."""


def refusals(lines: Iterable[str]) -> dict[str, str]:
    """Map producers to XLA's reason for not fusing them into their readers.

    The last reason counts, because the pass decides repeatedly.

    A reason for a fusion made by the pass also applies to the op whose result it yields, because fusions are renamed
    later.
    """
    result: dict[str, str] = {}
    results: dict[str, str] = {}
    step, names = "", dict[str, str]()
    for line in lines:
        stripped = line.strip()
        if stripped.endswith("{"):
            step, names = stripped.removesuffix("{").strip(), {}
            continue
        field = _FIELD.match(line) if step in ("producer_ineligible", "fusion") else None
        if field is None:
            continue
        names[field[1]] = field[2]
        if len(result) + len(results) >= MAX_REFUSALS:
            continue
        if step == "fusion" and "fusion_name" in names and "consumer_name" in names:
            consumer = names["consumer_name"]
            results[names["fusion_name"]] = results.get(consumer, consumer)
        elif step == "producer_ineligible" and field[1] == "reason" and names.get("producer_name"):
            producer = names["producer_name"]
            result[producer] = field[2]
            if producer in results:
                result[results[producer]] = field[2]
    return result


def refusal_of(module: HloModule, kernel: Instruction) -> str | None:
    """Return why XLA did not fuse a kernel into its readers, by its name or that of the op whose result it yields."""
    refused = module.fusion_refusals
    if not refused or kernel.name in refused:
        return refused.get(kernel.name)
    for called in kernel.called if kernel.opcode == "fusion" else ():
        root = module.computations[called].root
        inner = module.computations[called].by_name
        for name in root.operands if root.opcode == "tuple" else (root.name,):
            copy = _COPY.match(re.sub(r"\.clone(\.\d+)?$", "", name)) if name in inner else None
            if copy is not None and f"{copy[1]}.0" in refused:
                return refused[f"{copy[1]}.0"]
    return None
