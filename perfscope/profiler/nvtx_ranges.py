"""NVTX ranges under versions of Nsight Systems that deny listening, though they listen.

nvtx 0.2.12 and later ask the tool whether a domain is enabled (``nvtxDomainIsEnabled``) and record nothing where it
says no. Nsight Systems 2022.4 and 2023.x answer no and record what they are sent (NVIDIA/NVTX issue 126).
"""

from __future__ import annotations

from typing import Any


class InsistentRanges:
    """The functions of the module ``nvtx`` that we use, sent to a domain whatever the tool says of it."""

    def __init__(self, domain: Any) -> None:
        """``domain``: an ``nvtx.Domain``."""
        self._domain = domain

    def push_range(self, message: str, *, domain: str) -> None:
        """Open a range of this thread's stack. ``domain`` is ours already; the module takes it, so we do."""
        self._domain.push_range(message=message)

    def pop_range(self, *, domain: str) -> None:
        """Close the innermost."""
        self._domain.pop_range()

    def start_range(self, message: str, *, domain: str) -> Any:
        """Open a range that may close anywhere; its handle."""
        return self._domain.start_range(message=message)

    def end_range(self, handle: Any) -> None:
        """Close it."""
        self._domain.end_range(handle)


def insist(name: str) -> InsistentRanges | None:
    """Ranges in the domain ``name`` that ask nobody; ``None`` where this nvtx package is built in another way.

    ``Domain.__new__`` is what asks; the domain is made without it. nvtx below 0.2.12 never asks and needs none of this.
    """
    try:
        from nvtx._lib import lib

        domain = object.__new__(lib.Domain)
        domain.handle = lib.DomainHandle(name)
        domain.__init__(name)
        domain.end_range(domain.start_range(message="perfscope"))
    except Exception:  # private names of the package: any of them may be gone
        return None
    return InsistentRanges(domain)
