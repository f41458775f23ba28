"""What all planes of a file share: the string pool, the threads, and what was left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pool:
    """Strings and threads by code, and tallies of what was read and where it went."""

    strings: list[str] = field(default_factory=list)
    threads: dict[tuple[str, str], int] = field(default_factory=dict)
    events: int = 0
    unplaced: Counter[str] = field(default_factory=Counter)
    """Events with no place in the model, by reason."""
    marks: Counter[str] = field(default_factory=Counter)
    """Events that are no spans of their own and were read as marks, or left out by name, by what they are."""
    _codes: dict[str, int] = field(default_factory=dict)

    def code(self, text: str) -> int:
        """Code of a string."""
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self.strings)
            self.strings.append(text)
        return found

    def thread(self, process: str, name: str, line: int) -> int:
        """Row of a thread. Lines of one name are one thread only if their id is the same."""
        known = self.threads.get((process, name))
        if known is None or known == line:
            self.threads[process, name] = line
            return list(self.threads).index((process, name))
        return self.thread(process, f"{name}/{line & 0xFFFFFFFFFFFFFFFF}", line)
