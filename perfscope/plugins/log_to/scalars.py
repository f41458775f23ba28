"""The numbers of an analysis that a tracker of experiments keeps."""

from __future__ import annotations

from collections import Counter

from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.savings import step_time
from perfscope.model.trace import MISSING


def scalars(analysis: Analysis) -> dict[str, float]:
    """Return name -> value; the name ends in its unit. A number that was not recorded is left out.

    ``busy_share`` (0 to 1) and ``exposed_communication_ms`` (per step) are means over the devices of all ranks;
    ``peak_memory_bytes`` is the highest peak of a memory. ``findings/RULE`` is 0 for a clean rule, and left out for
    a rule that was not evaluated.
    """
    found: dict[str, float] = {}
    timed = step_time(analysis)
    if timed is not None:
        found["step_time_ms"] = timed.ns / 1e6
    accounts = [account for account in analysis.warm_accounts if account.device != MISSING and account.whole_ns]
    if accounts:
        found["busy_share"] = sum(item.busy_ns for item in accounts) / sum(item.whole_ns for item in accounts)
    stepped = [account for account in accounts if account.numbers]
    if stepped:
        exposed = sum(account.total_ns["exposed_communication"] for account in stepped)
        found["exposed_communication_ms"] = exposed / sum(len(account.numbers) for account in stepped) / 1e6
    if analysis.memory.entries:
        found["peak_memory_bytes"] = float(max(entry.worst.peak_bytes for entry in analysis.memory.entries))
    counts = Counter(rule for rule, _ in analysis.findings())
    judged = [outcome.rule for outcome in analysis.outcomes if outcome.status != "abstained"]
    found["findings_total"] = float(counts.total())
    found.update({f"findings/{rule}": float(counts[rule]) for rule in judged})
    return {f"perfscope/{name}": value for name, value in found.items()}
