"""The command that adds an extra fits the installation."""

from __future__ import annotations

import importlib.metadata
import json
from types import SimpleNamespace

import pytest

from perfscope.model.version import install_command


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (None, "pip install 'perfscope[sql]'"),
        ("not json", "pip install 'perfscope[sql]'"),
        ({"url": "https://example.org/p.whl", "archive_info": {}}, "pip install 'perfscope[sql]'"),
        ({"url": "file:///my%20tools/perfscope", "dir_info": {}}, "pip install '/my tools/perfscope[sql]'"),
        ({"url": "file:///src/perfscope", "dir_info": {"editable": True}}, "pip install -e '/src/perfscope[sql]'"),
    ],
)  # fmt: skip
def test_the_command_names_where_perfscope_came_from(
    source: object, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = source if source is None or isinstance(source, str) else json.dumps(source)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))
    assert install_command("sql") == command


def test_without_an_installation_it_is_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    assert install_command("ui") == "pip install 'perfscope[ui]'"
