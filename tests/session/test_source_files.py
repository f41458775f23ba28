"""Whose a file is: packages of each environment on the import path are installed, not the user's."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from perfscope.profiler.source_files import SourceFiles


def test_packages_that_another_environment_adds_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    added = "/opt/other/lib/python3.11/site-packages"
    monkeypatch.setattr(sys, "path", ["/opt/project", added, *sys.path])
    files = SourceFiles(Path("/home/one"), ())
    assert files.is_installed(f"{added}/matplotlib/pyplot.py")
    assert files.name_with_owner(f"{added}/matplotlib/pyplot.py") == "site-packages/matplotlib/pyplot.py"
    assert files.is_installed(f"{sysconfig.get_paths()['scripts']}/trl")
    assert not files.is_installed("/opt/project/matplotlib_figures.py")
    assert files.name_with_owner("/opt/project/matplotlib_figures.py") == "matplotlib_figures.py"
