"""The frame of every one-file page: a policy that forbids any request, its styles, its script, its data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape

from perfscope.dashboards.reports.html_style import SCRIPT, STYLE


def page(body: Iterable[str], *, title: str, data_id: str, data: str, style: str = "") -> str:
    """The whole page. ``body`` is HTML, its texts escaped; ``title`` is text; ``style`` comes behind our own.

    ``data`` is JSON for a ``<script>`` block of that id: no ``<`` may be in it.
    """
    style = STYLE + style
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(SCRIPT)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            '<link rel="icon" href="data:,">',
            f"<title>perfscope: {escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            "<main>",
            *body,
            "</main>",
            f'<script type="application/json" id="{data_id}">{data}</script>',
            f"<script>{SCRIPT}</script>",
            "</body>",
            "</html>",
            "",
        )
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
