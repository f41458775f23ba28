"""``perfscope run --fingerprint``."""

from __future__ import annotations

import click

from perfscope.commands.options import records
from perfscope.plugins.fingerprint import PLUGIN

FINGERPRINT = click.Option(
    ["--fingerprint"],
    is_flag=True,
    expose_value=False,
    callback=records(PLUGIN, "fingerprint"),
    help="Record hashes of what each op reads and makes, and no times, for `perfscope parity RUN RUN`: in the first "
    "two steps and in each whose number is a power of two, or in --steps A:B.",
)
