"""The installed package: its version, and the command that adds an extra to it."""

from __future__ import annotations


def package_version() -> str:
    """``0+unknown`` where perfscope runs from a checkout that was never installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("perfscope")
    except PackageNotFoundError:
        return "0+unknown"


def install_command(extra: str) -> str:
    """The ``pip install`` command that adds an extra, from where perfscope was installed: a folder, or an index."""
    import json
    import shlex
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        source = json.loads(distribution("perfscope").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        source = {}
    address = urlsplit(source.get("url", ""))
    if address.scheme != "file":
        return f"pip install 'perfscope[{extra}]'"
    editable = "-e " if source.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{unquote(address.path)}[{extra}]')}"
