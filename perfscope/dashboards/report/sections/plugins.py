"""Additions of plug-ins to every report: their sections, and sentences for its head."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from perfscope.model.errors import log_failure
from perfscope.model.plugins import load, plugins

if TYPE_CHECKING:
    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.blocks import Section

_log = logging.getLogger(__name__)


def plugin_sections(analysis: Analysis) -> tuple[Section, ...]:
    """Sections of all plug-ins."""
    return tuple(_collected(analysis, "sections"))


def plugin_facts(analysis: Analysis) -> tuple[str, ...]:
    """Sentences of all plug-ins for the head of a report."""
    return tuple(_collected(analysis, "facts"))


def _collected(analysis: Analysis, function: str) -> list[Any]:
    found: list[Any] = []
    for plugin in plugins():
        if not plugin.report or not any(analysis.results.get(name) for name in plugin.results):
            continue
        try:
            found += getattr(load(plugin.report), function)(analysis)
        except Exception as error:  # another author's package: the report is complete without it
            log_failure(_log, f"{function} of plug-in {plugin.name} cannot be made", error)
    return found
