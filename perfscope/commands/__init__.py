"""The verbs, a written list: name -> ``module:attribute`` of a click command. One verb a file.

A command returns its exit code (``None`` is 0) and raises ``PerfscopeError``; it prints no errors
and never exits by itself: ``perfscope.__main__.main`` does. Its body imports the heavy modules.
"""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "analyze": "perfscope.commands.analyze:analyze",
    "compare": "perfscope.commands.compare:compare",
    "doctor": "perfscope.commands.doctor:doctor",
    "explain": "perfscope.commands.explain:explain",
    "query": "perfscope.commands.query:query",
    "report": "perfscope.commands.report:report",
    "rules": "perfscope.commands.rules:rules",
    "run": "perfscope.commands.run:run",
    "runs": "perfscope.commands.runs:runs",
    "serve": "perfscope.commands.serve:serve",
    "trigger": "perfscope.commands.trigger:trigger",
}

TASKS: dict[str, tuple[str, ...]] = {
    "Capture": ("run", "trigger", "runs", "doctor"),
    "Analyze": ("analyze", "query", "serve", "rules", "explain"),
    "Fix": (),
    "Compare": ("compare",),
    "Compile for a machine that is not here": (),
    "Share": ("report",),
}
"""Task -> verbs, in the order in which the help lists them; each verb has one task."""
