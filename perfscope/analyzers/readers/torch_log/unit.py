"""What is known so far of one compilation, while the log is read."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfscope.analyzers.readers.torch_log.output_code import Code
from perfscope.model.compile_log import CacheResult, CodeLine, Compile, Direction, GraphNode


@dataclass(slots=True)
class GraphText:
    """A graph as read: its nodes, the values it takes, the names it returns."""

    nodes: tuple[GraphNode, ...] = ()
    inputs: tuple[GraphNode, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(slots=True)
class Section:
    """One graph on its way through inductor: its records follow each other."""

    direction: Direction | None = None
    graph: GraphText | None = None
    final: bool = False
    """Whether ``graph`` is the last one before code is made, not an earlier stage."""
    code: Code | None = None
    nodes_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Kernel to nodes, as inductor's provenance says."""
    places_of: dict[str, tuple[CodeLine, ...]] = field(default_factory=dict)
    compile_us: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Unit:
    """One compilation of one frame."""

    compile_id: str
    function: str | None = None
    place: CodeLine | None = None
    stack: tuple[CodeLine, ...] = ()
    attempt: int = 0
    started: bool = False
    finished: bool = False
    """Whether its metrics were written; one that died has none."""
    start_ns: int | None = None
    duration_ns: int | None = None
    backward_ns: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    caches: dict[str, CacheResult] = field(default_factory=dict)
    cache_reasons: dict[str, str] = field(default_factory=dict)
    guards: int | None = None
    graph_ops: int | None = None
    fail_type: str | None = None
    fail_reason: str | None = None
    fail_text: str | None = None
    """The whole of it, for the hints in it."""
    fail_place: CodeLine | None = None
    restart_reasons: tuple[str, ...] = ()
    has_code: bool | None = None
    symbols: dict[str, str] = field(default_factory=dict)
    traced_graphs: int = 0
    aot: dict[Direction, GraphText] = field(default_factory=dict)
    """AOT autograd's graphs, before inductor's passes."""
    sections: list[Section] = field(default_factory=list)
    breaks: int = 0

    @property
    def section(self) -> Section | None:
        """The graph that inductor works on, or worked on last."""
        return self.sections[-1] if self.sections else None

    def direction_of(self, section: Section | None) -> Direction:
        """Which pass a graph is of; where nothing says it, what AOT autograd made of the frame."""
        if section is not None and section.direction is not None:
            return section.direction
        return "forward" if "forward" in self.aot else "inference"

    def build(self) -> Compile:
        """The compilation, as far as the log tells."""
        return Compile(
            compile_id=self.compile_id,
            function=self.function,
            place=self.place,
            stack=self.stack,
            attempts=self.attempt + 1,
            start_ns=self.start_ns,
            duration_ns=self.duration_ns,
            backward_ns=self.backward_ns,
            seconds_by_phase=self.seconds,
            caches=self.caches,
            cache_reasons=self.cache_reasons,
            guards=self.guards,
            graph_ops=self.graph_ops,
            fail_type=self.fail_type,
            fail_reason=self.fail_reason,
            restart_reasons=self.restart_reasons,
            has_code=self.has_code,
            symbols=self.symbols,
            traced_graphs=self.traced_graphs,
            complete=self.finished,
        )
