"""Fixtures of pytest: a program or a function is profiled in a test, and the test asserts on its findings and numbers.

They are registered with pytest (entry point ``pytest11``), so a test only names them: `docs/pytest.md`.
"""

from __future__ import annotations

from perfscope.model.plugins import Plugin

PLUGIN = Plugin(name="pytest_fixtures")
