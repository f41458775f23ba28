"""Compilers for machines that are not here, for tests: found as `perfscope compile` finds them, else a skip."""

from __future__ import annotations

import pytest

from perfscope.plugins.ahead.targets import plugins


def require(kind: plugins.Kind) -> plugins.Plugin:
    """The compiler of a kind, or a skip that names what is missing."""
    found = plugins.find(kind)
    if isinstance(found, plugins.MissingPlugin):
        pytest.skip(f"{found.reason}; {found.install}")
    return found


def require_checkpoint() -> None:
    """Skip with the reason if this jax does not support ``--checkpoint``."""
    jax = pytest.importorskip("jax")
    from perfscope.plugins.ahead.jax import compat

    if compat.missing(compat.RUN_INTERFACES | compat.CHECKPOINT_INTERFACES):
        pytest.skip(f"jax {jax.__version__}: --checkpoint is for jax {compat.KNOWN_VERSION}")
