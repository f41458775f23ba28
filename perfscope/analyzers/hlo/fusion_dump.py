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

_FIELD = re.compile(r'\s*(producer_name|reason): "((?:[^"\\]|\\.)*)"\s*$')

MAX_REFUSALS = 1 << 20
"""More than any program has kernels; a file that claims more is not read to its end."""


def refusals(lines: Iterable[str]) -> dict[str, str]:
    """Producer -> why XLA did not fuse it into its readers; the last word counts, the pass asks repeatedly."""
    found: dict[str, str] = {}
    inside, producer = False, ""
    for line in lines:
        stripped = line.strip()
        if stripped.endswith("{"):
            inside, producer = stripped.startswith("producer_ineligible"), ""
            continue
        field = _FIELD.match(line) if inside else None
        if field is None:
            continue
        if field[1] == "producer_name":
            producer = field[2]
        elif producer and len(found) < MAX_REFUSALS:
            found[producer] = field[2]
    return found
