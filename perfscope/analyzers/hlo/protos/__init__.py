"""Trimmed protocol buffers of XLA and its profiler, in a private descriptor pool.

No wheel has these descriptors, and the default pool belongs to TensorFlow if that is installed: two files that declare
``xla.HloProto`` in it end the process. So each module of this folder declares in ``SCHEMA`` the messages and fields
that we read, and ``message("hlo.HloProto")`` returns a class for them, built in a private pool. Published field numbers
never change; a test compares ours with the descriptors inside the installed jaxlib.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from perfscope.analyzers.hlo.protos.schema import file_descriptor
from perfscope.model.errors import DataError


@cache
def pool() -> Any:
    """The private ``google.protobuf.descriptor_pool.DescriptorPool``."""
    from google.protobuf.descriptor_pool import DescriptorPool

    return DescriptorPool()


@cache
def message(full_name: str) -> Any:
    """The message class of a name such as ``hlo.HloProto``: the module of this folder, then the message."""
    from google.protobuf.message_factory import GetMessageClass

    package = full_name.partition(".")[0]
    _declare(package)
    return GetMessageClass(pool().FindMessageTypeByName(full_name))


def decode(full_name: str, data: bytes | memoryview, shown: str) -> Any:
    """Parse a message; ``DataError``, one line that begins with ``shown``, for invalid bytes."""
    from google.protobuf.message import DecodeError

    try:
        return message(full_name).FromString(bytes(data))
    except (DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{shown}: cut off or corrupt: not a {full_name.rpartition('.')[2]}") from error


@cache
def _declare(package: str) -> None:
    """Add a module's messages to the pool, once."""
    schema: str = importlib.import_module(f"{__name__}.{package}").SCHEMA
    pool().AddSerializedFile(file_descriptor(package, schema).SerializeToString())
