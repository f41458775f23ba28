"""The account of a job as a JSON document."""

from __future__ import annotations

from typing import Any

import msgspec

from perfscope.model.documents.bounded_json import schema_of
from perfscope.model.untrusted_text import sanitize_value
from perfscope.plugins.job.account import JobAccount

SCHEMA = "perfscope.job/1"


class JobDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The account with its schema."""

    schema: str = SCHEMA
    account: JobAccount


def dump(account: JobAccount) -> bytes:
    """UTF-8 JSON, its texts without control characters, secrets and homes."""
    document = JobDocument(account=account)
    return msgspec.json.format(msgspec.json.encode(sanitize_value(msgspec.to_builtins(document))), indent=1) + b"\n"


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a document, made from its types."""
    return schema_of(JobDocument, SCHEMA, what="The account of a job")
