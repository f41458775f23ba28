"""Compilers for machines that are not here, for tests: found as `perfscope compile` finds them, else a skip."""

from __future__ import annotations

import pytest

from perfscope.profiler.ahead.targets import plugins


def require(kind: plugins.Kind) -> plugins.Plugin:
    """The compiler of a kind, or a skip that says what is missing."""
    found = plugins.find(kind)
    if isinstance(found, plugins.MissingPlugin):
        pytest.skip(f"{found.reason}; {found.install}")
    return found
