"""The strings of an export: those of a trace and our own, each made fit to show once."""

from __future__ import annotations

from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import TEXT_LIMIT, clean, shorten


class Texts:
    """Strings by code. The codes of the trace's text columns hold; ours come after them."""

    def __init__(self, trace: Trace | None = None) -> None:
        self._texts = [] if trace is None else list(trace.strings)
        self._codes: dict[str, int] = {}
        self._shown: dict[int, str] = {}

    def __len__(self) -> int:
        """Number of codes."""
        return len(self._texts)

    def code(self, text: str) -> int:
        """Code of a text of ours."""
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self._texts)
            self._texts.append(text)
        return found

    def shown(self, code: int) -> str:
        """The text without secrets, control characters and endless names."""
        found = self._shown.get(code)
        if found is None:
            found = self._shown[code] = fit(self._texts[code])
        return found


def fit(text: str) -> str:
    """A text of a stranger as it may stand in a file that is passed on."""
    return shorten(clean(text), TEXT_LIMIT)
