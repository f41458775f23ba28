"""What is known of torch's allocators of device memory, for those that record them and those that judge them."""

from __future__ import annotations

ROUNDED_TO = 512
"""Bytes: what is handed out is a multiple of it (``kMinBlockSize`` in ``c10/core/AllocatorConfig.h``)."""
