"""``perfscope run --numerics``."""

from __future__ import annotations

import click

from perfscope.commands.options import records
from perfscope.plugins.numerics import PLUGIN

NUMERICS = click.Option(
    ["--numerics"],
    is_flag=True,
    expose_value=False,
    callback=records(PLUGIN, "numerics"),
    help="Record value ranges, NaN and infinity, loss scales and lost precision in all steps, and no times. "
    "With --level deep ops are watched in all steps.",
)
