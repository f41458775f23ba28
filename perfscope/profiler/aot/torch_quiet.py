"""What is dispatched while torch's compiler works, or while a planned graph stands in for its kernels, is nobody's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any


class Quiet:
    """``watchers``: contexts in which one that looks at ops looks away."""

    def __init__(self, watchers: Sequence[Callable[[], AbstractContextManager[None]]]) -> None:
        self._watchers = watchers
        self._held: ExitStack | None = None

    @property
    def compiling(self) -> bool:
        """Whether the compiler is at work; it may run a graph it has just made, to see the sizes of its results."""
        return self._held is not None

    @contextmanager
    def around(self, watchers: int | None = None) -> Iterator[None]:
        """Everybody looks away; the first so many of them."""
        with ExitStack() as stack:
            for watcher in self._watchers[:watchers]:
                stack.enter_context(watcher())
            yield

    def listen(self) -> None:
        """To the compiler, from now on."""
        from torch._dynamo import callback_handler

        def begins(_: Any) -> None:
            held = ExitStack()
            held.enter_context(self.around())
            self._held = held

        def ends(_: Any) -> None:
            held, self._held = self._held, None
            if held is not None:
                held.close()

        callback_handler.register_start_callback(begins)
        callback_handler.register_end_callback(ends)
