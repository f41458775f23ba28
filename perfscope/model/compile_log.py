"""The log of torch.compile in one process, as a model.

Written by `perfscope run` (capture `torch_compile`) or by ``TORCH_TRACE=DIR`` of any torch since 2.6. Times are
integer ns since the epoch, as the log has them; ``CompileLog.clock_offset_ns`` moves them onto a trace's clock.
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from msgspec import Meta, Struct, field

MAX_TEXT = 20_000
"""Characters of a text in the file of a plan."""
MAX_REASONS = 1_000

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Count = Annotated[int, Meta(ge=0)]
Bytes = Annotated[int, Meta(ge=0)]

Direction = Literal["forward", "backward", "inference"]
CacheResult = Literal["hit", "miss", "bypass"]
KernelBackend = Literal["triton", "cpp", "extern", "other"]

Side = TypeVar("Side")
"""A scheduler node by name, or a kernel by number."""


class ProgramLine(Struct, frozen=True, kw_only=True):
    """A line of the program."""

    file: Text
    """Path; in a plan as seen from the folder the program was started in."""
    line: Count
    """Line."""
    function: Text | None = None
    """Function."""


class CodeLine(ProgramLine, frozen=True, kw_only=True):
    """A line of Python."""

    code: str | None = None
    """The text of the line, if the log has it."""


class Phase(Struct, frozen=True, kw_only=True):
    """One timed part of the compiler's work (a chromium event): dynamo, AOT autograd, inductor, code generation."""

    name: str
    start_ns: int
    end_ns: int
    compile_id: str | None = None
    """``'0/1'``: frame and how often it was compiled; backwards compile under the id of their forward."""
    depth: int = 0
    """Phases of the same thread around it."""
    parent: int | None = None
    """Index in ``CompileLog.phases`` of the innermost one around it."""


class Compile(Struct, frozen=True, kw_only=True):
    """One compilation of one frame: all its attempts (dynamo starts again after a graph break)."""

    compile_id: str
    function: str | None
    """Dynamo's name of the frame; ``torch_dynamo_resume_in_f_at_4`` continues ``f`` after a graph break."""
    place: CodeLine | None
    """First line of the frame (for a resume function the line after the break)."""
    stack: tuple[CodeLine, ...] = ()
    """From the program's outermost frame to this one."""
    attempts: int = 1
    """1 + restarts."""
    start_ns: int | None = None
    duration_ns: int | None = None
    """Time of dynamo and its backend for this frame, from the log's metrics; backward not included."""
    backward_ns: int | None = None
    """Compiling the backward graph, often later and in the first backward."""
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    """As the metrics name them: ``backend_compile``, ``inductor_compile``, ``code_gen``, ``triton_compile`` ..."""
    caches: dict[str, CacheResult] = field(default_factory=dict)
    """By cache: ``fx_graph``, ``fx_graph_backward``, ``aotautograd``."""
    cache_reasons: dict[str, str] = field(default_factory=dict)
    """Why a cache was bypassed, or what differed, in torch's words."""
    guards: int | None = None
    graph_ops: int | None = None
    """Ops of its dynamo graph; 0 if the frame has nothing to compile."""
    fail_type: str | None = None
    fail_reason: str | None = None
    restart_reasons: tuple[str, ...] = ()
    has_code: bool | None = None
    """False: the frame runs in eager mode."""
    symbols: dict[str, str] = field(default_factory=dict)
    """Dynamic sizes: symbol to where it comes from, ``s27`` to ``L['x'].size()[0]``."""
    arguments: tuple[str, ...] = ()
    """Inputs of its graph in order, by dynamo's names: ``L_self_modules_up_parameters_weight_``. AOT autograd names
    them ``primals_1`` and so on."""
    traced_graphs: int = 0
    """Graphs that dynamo handed to the backend in all attempts: 0 if the frame has nothing to compile."""
    complete: bool = True
    """False: the log ends before this compilation did (the process died, or still runs)."""
    schedule: tuple[str, ...] = ()
    """Collectives of its graphs in the order in which inductor calls them; empty if not logged."""
    estimated_ns: float | None = None
    """Time of one call of its graphs by inductor's own model."""
    tensors: str | None = None
    """Hash of the shapes, strides and dtypes of the results of each call."""


class GraphBreak(Struct, frozen=True, kw_only=True):
    """Where dynamo ended a graph, and why."""

    compile_id: str
    reason: str
    """One line in torch's words."""
    explanation: str | None = None
    hints: tuple[str, ...] = ()
    doc_id: str | None = None
    """``gb0059``, torch's stable id of this kind of break."""
    place: CodeLine | None = None
    """The user's line."""
    stack: tuple[CodeLine, ...] = ()
    skipped_frame: bool = False
    """The whole frame runs in eager mode, not only this line."""
    time_ns: int | None = None


class Recompile(Struct, frozen=True, kw_only=True):
    """A frame that was compiled before and whose guards failed."""

    compile_id: Text
    """Id of the new compilation."""
    function: Text | None
    place: ProgramLine | None
    reasons: Annotated[tuple[Text, ...], Meta(max_length=MAX_REASONS)]
    """Guards that failed, with values: ``tensor 'x' size mismatch at index 0. expected 32, actual 33``."""


class LoggedRecompile(Recompile, frozen=True, kw_only=True):
    """A recompilation in the log."""

    place: CodeLine | None
    guard_place: CodeLine | None = None
    """The line that made the first guard necessary, if torch logs it. The file may be only the end of a path."""
    time_ns: int | None = None


class GraphNode(Struct, frozen=True, kw_only=True):
    """One op of a graph after inductor's passes on it."""

    name: str
    op: str
    """``aten.mm.default``."""
    inputs: tuple[str, ...] = ()
    dtype: str | None = None
    shape: tuple[int | str, ...] = ()
    """A dynamic size is its symbol."""
    place: CodeLine | None = None
    flags: tuple[bool, ...] = ()
    """Truth values among its arguments, in order: ``transposed`` of a convolution, ``is_causal`` of attention."""


class Graph(Struct, frozen=True, kw_only=True):
    """A graph that inductor compiled."""

    compile_id: str
    direction: Direction
    nodes: tuple[GraphNode, ...]
    recomputed: tuple[str, ...] = ()
    """Backward graphs: nodes that the forward computes as well (inductor's partitioner chose not to save them)."""
    inputs: tuple[GraphNode, ...] = ()
    """Inputs of the graph, op ``placeholder``, with dtype and shape."""
    outputs: tuple[str, ...] = ()
    """Names of nodes and inputs it returns; for a forward the results and the tensors saved for the backward."""
    after_passes: bool = True
    """False: AOT autograd's graph, before inductor's passes; the log has no later one."""


class CompiledKernel(Struct, frozen=True, kw_only=True):
    """One kernel or library call of inductor's output code.

    Where inductor numbers its calls (provenance since 2.9) there is one for each call, so a name may come more than
    once with different nodes; otherwise one for each name.
    """

    name: str
    """As it appears in a trace: ``triton_poi_fused_add_relu_0``, ``cpp_fused_mul_relu_0``, ``extern_kernels.mm``."""
    backend: KernelBackend
    compile_id: str
    direction: Direction
    calls: int = 1
    """Times the output code calls it."""
    nodes: tuple[str, ...] = ()
    """Nodes of the graph it computes. Empty if not logged: torch 2.13 does not log it for a backward graph that is
    compiled on its own, when the first backward runs; ``places`` are there."""
    ops: tuple[str, ...] = ()
    """ATen ops of those nodes."""
    places: tuple[CodeLine, ...] = ()
    """The user's lines it computes, the innermost of each stack, without repeats."""
    handle: str | None = None
    """Inductor's name of the call, ``extern_kernels.mm:4``; unique in its graph."""
    compile_ns: int | None = None
    """Triton's time to compile it, where logged."""


class Refusal(Struct, Generic[Side], frozen=True, kw_only=True):
    """Two neighbours that inductor's scheduler did not fuse; repeats are merged."""

    first: Side
    second: Side
    reason: Text
    """In inductor's words, which name its own nodes and ranges."""
    times: Count = 1
    """Rounds of the scheduler with this refusal."""
    shared_bytes: Bytes | None = None
    """Bytes that the first writes and the second reads; ``None`` if unknown."""
    common_read_bytes: Bytes | None = None
    """Bytes that both read; ``None`` if unknown."""


class FusionRefusal(Refusal[str], frozen=True, kw_only=True):
    """A refusal in the log, between scheduler nodes by name: ``op2`` or ``op2_op3``."""

    compile_id: str | None
    direction: Direction | None
    first_nodes: tuple[str, ...] = ()
    second_nodes: tuple[str, ...] = ()
    first_kernel: str | None = None
    second_kernel: str | None = None


class StepSpan(Struct, frozen=True, kw_only=True):
    """From the first to the last record of a step in which something was compiled (`perfscope run`)."""

    step: int | None
    """Step of the whole run, counted from 0; work before the first step counts for it. ``None``: unknown."""
    start_ns: int
    end_ns: int


class CompileLog(Struct, frozen=True, kw_only=True):
    """The log of one process."""

    path: str
    rank: int | None = None
    rank_source: str | None = "records of the log"
    torch_version: str | None = None
    compiles: tuple[Compile, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[LoggedRecompile, ...] = ()
    graphs: tuple[Graph, ...] = ()
    kernels: tuple[CompiledKernel, ...] = ()
    refusals: tuple[FusionRefusal, ...] = ()
    phases: tuple[Phase, ...] = ()
    records: int = 0
    """Records of the file that were understood."""
    corrupt: int = 0
    """Records that were corrupt and left out."""
    unknown: dict[str, int] = field(default_factory=dict)
    """Kinds of records this reader does not know, and how many."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Kind -> number of other records outside of the model: phases without an end, records beyond a limit."""
    has_refusals: bool = False
    """Whether refusals were logged at all: TORCH_TRACE alone does not hold them."""
    has_provenance: bool = False
    """Whether inductor logged which nodes each kernel computes."""
    clock_offset_ns: int = 0
    """Add it to a time to get the clock of the trace this log belongs to."""
    steps: tuple[StepSpan, ...] = ()
    """Steps of the run in which something was compiled, in order of time; empty if no steps were counted."""
    executed: tuple[str, ...] = ()
    """Compile ids of inductor's graphs in the order in which they ran, if the program recorded that
    (``torch._inductor.debug.record_and_log_graph_execution_order``) and torch had the ids of all."""
    scheduled_graphs: int | None = None
    """Graphs whose fusion inductor decided while it was watched; those from its caches were decided before."""
    settings: tuple[str, ...] = ()
    """Settings of inductor that perfscope put for the run, all of them part of the keys of its caches: a miss may be
    a hit without perfscope."""

    def step_at(self, time_ns: int) -> int | None:
        """The step of the run at a time of this log, or the nearest one; ``None`` if unknown."""
        nearest = min(self.steps, key=lambda span: max(span.start_ns - time_ns, time_ns - span.end_ns, 0), default=None)
        return None if nearest is None else nearest.step
