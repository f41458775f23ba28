"""Sections of plans in text, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable

from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.renderers.markdown import sections_markdown
from perfscope.plugins.memory_advice.plans import plan_memory
from perfscope.plugins.memory_advice.sections import plan_sections, plans_report
from tests.plugins.memory_advice.steps import layers
from tests.report.test_sections import terminal


def test_golden(golden: Callable[[str, str], None]) -> None:
    model = layers(6, held=1 << 20, activation=1 << 20, product=1 << 19, temporary=1024)
    shown = tuple(plan_sections(plans_report(plan_memory(model, budget_bytes=9 << 20), "step.fake")))
    golden("advice.txt", terminal(shown) + "\n=== -v\n\n" + terminal(shown, verbose=True))
    golden("advice.md", sections_markdown(shown))
    golden("advice.html", "\n".join(sections_html(shown)).replace("><", ">\n<"))
