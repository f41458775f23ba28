"""Checkpoints in files: safetensors, also in several files, PyTorch's, and Orbax's, read and written."""

from __future__ import annotations

from perfscope.plugins.parity.checkpoints.files import check_target, open_checkpoint, write_checkpoint
from perfscope.plugins.parity.checkpoints.stored import Checkpoint, narrowed, stored_bytes, widened

__all__ = ["Checkpoint", "check_target", "narrowed", "open_checkpoint", "stored_bytes", "widened", "write_checkpoint"]
