"""Which collective may run beside what: the program's streams and events, kept as what each has seen of the others.

Nothing runs, so a stream is only what work given to it would wait for: the program's own work up to a moment, and
collectives. Work that is no collective counts as given to the program's own (first) stream, whichever it is given to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from perfscope.model.documents.torch_plan import StepPosition

BEGIN = StepPosition(ops=0)
StreamState = tuple[StepPosition, frozenset[int]]
"""(the program's own work up to then, collectives) that must be done."""


class StreamClock:
    """The streams of a process. ``now()`` is asked for the moment of the step."""

    def __init__(self, now: Callable[[], StepPosition], waited: Callable[[int], None]) -> None:
        """``waited(collective)``: from now on the program's own stream waits for it."""
        self.now, self.waited = now, waited
        self.step = 0
        self.main = Stream(self)
        self.current = self.main

    def begin(self) -> None:
        """A step begins: what earlier ones left behind is done."""
        self.step += 1

    def seen(self) -> StreamState:
        """What work that is asked for now would wait for."""
        return self.current.seen()

    def everything(self, collectives: int) -> None:
        """The host waits for the device (``torch.cuda.synchronize``); so many collectives were asked for so far."""
        for one in range(collectives):
            self.waited(one)

    def answers(self) -> dict[str, Any]:
        """What ``torch.cuda`` and ``torch.cpu`` answer instead of their own."""
        clock = self

        def make_stream(*_: Any, **__: Any) -> Stream:
            return Stream(clock)

        def make_event(*_: Any, **__: Any) -> Event:
            return Event(clock)

        @contextmanager
        def on(stream: Any = None) -> Iterator[None]:
            before = clock.current
            if isinstance(stream, Stream):
                clock.current = stream
            try:
                yield
            finally:
                clock.current = before

        return {
            "Stream": make_stream,
            "Event": make_event,
            "current_stream": lambda *_, **__: clock.current,
            "default_stream": lambda *_, **__: clock.main,
            "stream": on,
            "set_stream": lambda stream: setattr(clock, "current", stream),
        }


class Stream:
    """What work that is given to it next would wait for."""

    cuda_stream = 0

    def __init__(self, clock: StreamClock) -> None:
        self._clock = clock
        self._step = -1
        self._seen: StreamState = (BEGIN, frozenset())

    def seen(self) -> StreamState:
        """Of the program's own stream: all of its work up to now."""
        if self is self._clock.main:
            return self._clock.now(), frozenset()
        return self._seen if self._step == self._clock.step else (BEGIN, frozenset())

    def waits_for(self, seen: StreamState) -> None:
        """From now on."""
        after, behind = seen
        if self is self._clock.main:
            for one in sorted(behind):
                self._clock.waited(one)
            return
        mine, others = self.seen()
        self._step = self._clock.step
        self._seen = (max(mine, after, key=_order), others | behind)

    def wait_stream(self, other: Any) -> None:
        """As torch's."""
        if isinstance(other, Stream):
            self.waits_for(other.seen())

    def wait_event(self, event: Any) -> None:
        """As torch's."""
        if isinstance(event, Event):
            self.waits_for(event.seen())

    def record_event(self, event: Any = None) -> Event:
        """As torch's."""
        made = event if isinstance(event, Event) else Event(self._clock)
        made.record(self)
        return made

    def synchronize(self) -> None:
        """The host waits, so all that it asks for later comes behind."""
        self._clock.main.waits_for(self.seen())

    def query(self) -> bool:
        """Idle."""
        return True


class Event:
    """A moment of a stream."""

    def __init__(self, clock: StreamClock) -> None:
        self._clock = clock
        self._step = -1
        self._seen: StreamState = (BEGIN, frozenset())

    def seen(self) -> StreamState:
        """What it stands for; nothing in a step behind that in which it was recorded."""
        return self._seen if self._step == self._clock.step else (BEGIN, frozenset())

    def record(self, stream: Any = None) -> None:
        """As torch's."""
        self._step = self._clock.step
        self._seen = (stream if isinstance(stream, Stream) else self._clock.current).seen()

    def wait(self, stream: Any = None) -> None:
        """As torch's."""
        (stream if isinstance(stream, Stream) else self._clock.current).wait_event(self)

    def synchronize(self) -> None:
        """The host waits."""
        self._clock.main.waits_for(self.seen())

    def query(self) -> bool:
        """Reached."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """No time passes."""
        return 0.0


def _order(one: StepPosition) -> int:
    return one.ops + one.runs
