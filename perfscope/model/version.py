"""The version of the installed package."""

from __future__ import annotations


def package_version() -> str:
    """``0+unknown`` where perfscope runs from a checkout that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("perfscope")
    except PackageNotFoundError:
        return "0+unknown"
