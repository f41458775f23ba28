"""Programs of these tests are compiled with few of LLVM's optimizations: that halves the time of the whole folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def quick_compilation() -> Iterator[None]:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)  # its default
