from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers import predict
from perfscope.analyzers.hlo.module import MAX_CALL_DEPTH
from perfscope.analyzers.predict import Estimate, estimate
from perfscope.analyzers.predict.spans import PRIORITY, Played, Task, play
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.sections import programs as section_module
from perfscope.analyzers.sections.programs import NO_ESTIMATE, estimate_section
from perfscope.model.documents.compile_manifest import Compiled, CompiledProgram, CompiledTarget, dump
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from tests.conftest import corpus_files
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace
from tests.predict.targets import target
from tests.predict.test_calibration import chain

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures" / "h100-programs").glob("*.hlo.pb.xz"))
H100 = target("H100 SXM")
H100X8 = target("H100 SXM", (1, 8))

GATHER = f"""
ENTRY %main (p: bf16[2097152], q: bf16[4096,4096]) -> (bf16[16777216], bf16[4096,4096]) {{
  %p = bf16[2097152] parameter(0)
  %q = bf16[4096,4096] parameter(1)
  %start = (bf16[2097152], bf16[16777216]) all-gather-start(%p), channel_id=1, replica_groups={{{{0,1,2,3,4,5,6,7}}}},
    dimensions={{0}}, CONFIG
  %work = bf16[4096,4096] dot(%q, %q), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {GPU}
  %done = bf16[16777216] all-gather-done(%start)
  ROOT %t = (bf16[16777216], bf16[4096,4096]) tuple(%done, %work)
}}
""".replace(",\n    dimensions", ", dimensions")
ASYNC = GATHER.replace("CONFIG", GPU)
SYNC = GATHER.replace("CONFIG", 'backend_config={"collective_backend_config":{"is_sync":true}}')


def check(found: Estimate) -> None:
    """Check properties of every estimate."""
    assert 0 <= found.step_ns.low <= found.step_ns.high
    low, high = found.parts
    assert low.total == found.step_ns.low
    assert high.total in (found.step_ns.high, found.step_ns.low)
    assert min(low.compute, low.communication, low.copies, low.gaps) >= 0
    assert min(high.compute, high.communication, high.copies, high.gaps) >= 0
    assert all(row.once.low <= row.once.high for row in found.rows)
    # what is exposed of the instructions is the step without its gaps
    assert sum(row.exposed.high for row in found.rows) >= found.step_ns.low - low.gaps
    assert any(row.on_path for row in found.rows) or not found.rows


def test_what_runs_beside_a_collective_hides_it() -> None:
    found = estimate(hlo_module(ASYNC), H100X8)
    check(found)
    gather, product = (next(row for row in found.rows if row.name == name) for name in ("start", "work"))
    assert found.parts[0].compute == product.once.low
    assert found.parts[0].communication == max(0, gather.once.low - product.once.low)
    assert found.step_ns.low == max(gather.once.low, product.once.low)
    assert gather.stream == "collectives"
    assert not gather.blocks


def test_a_synchronous_collective_hides_nothing() -> None:
    found = estimate(hlo_module(SYNC), H100X8)
    check(found)
    gather, product = (next(row for row in found.rows if row.name == name) for name in ("start", "work"))
    assert found.step_ns.low == gather.once.low + product.once.low
    assert found.parts[0].communication == gather.once.low
    assert gather.blocks
    assert found.step_ns.low > estimate(hlo_module(ASYNC), H100X8).step_ns.low


def test_a_product_is_at_its_peak_at_the_low_end() -> None:
    found = estimate(hlo_module(ASYNC), H100X8)
    product = next(row for row in found.rows if row.name == "work")
    assert product.once.low == int(2 * 4096**3 / 989.4e12 * 1e9)
    assert product.bound == "compute"


LOOP = f"""
%body (s: (s32[], f32[1048576])) -> (s32[], f32[1048576]) {{
  %s = (s32[], f32[1048576]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[1048576] get-tuple-element(%s), index=1
  %y = f32[1048576] negate(%x), {GPU}
  ROOT %r = (s32[], f32[1048576]) tuple(%i, %y)
}}
%cond (s: (s32[], f32[1048576])) -> pred[] {{
  %s = (s32[], f32[1048576]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %n = s32[] constant(7)
  ROOT %c = pred[] compare(%i, %n), direction=LT
}}
ENTRY %main (p: (s32[], f32[1048576])) -> (s32[], f32[1048576]) {{
  %p = (s32[], f32[1048576]) parameter(0)
  ROOT %w = (s32[], f32[1048576]) while(%p), condition=%cond, body=%bodyTRIPS
}}
"""
KNOWN = ', backend_config={"known_trip_count":{"n":"7"}}'


def test_a_loop_takes_as_long_as_its_turns() -> None:
    found = estimate(hlo_module(LOOP.replace("TRIPS", KNOWN)), H100)
    check(found)
    (row,) = found.rows  # the condition of a loop of known length does not run
    assert (row.name, row.runs) == ("y", 7)
    assert found.step_ns.low == 7 * row.once.low
    assert found.launches == 7
    assert not found.lower_bounds


def test_a_loop_of_unknown_length_is_a_lower_bound_and_said() -> None:
    found = estimate(hlo_module(LOOP.replace("TRIPS", "")), H100)
    check(found)
    assert [row.runs for row in found.rows] == [1, 1]
    assert "1 loop of unknown length, counted as one turn: w" in found.lower_bounds


def test_what_is_not_known_is_named_and_never_free() -> None:
    text = (
        "ENTRY %main (p: f32[1048576]) -> f32[1048576] {\n  %p = f32[1048576] parameter(0)\n"
        f'  ROOT %k = f32[1048576] custom-call(%p), custom_call_target="__gpu$xla.gpu.triton", {GPU}\n}}\n'
    )
    found = estimate(hlo_module(text), H100)
    check(found)
    (row,) = found.rows
    assert not row.known
    assert row.bound == "unknown"
    assert row.once.low > 0
    assert found.not_known == ("k",)
    assert found.lower_bounds == ("1 instruction with arithmetic that is not known: k",)


def test_of_branches_the_cheapest_and_the_dearest() -> None:
    branch = (
        "%b{n} (x: f32[{size}]) -> f32[] {{\n  %x = f32[{size}] parameter(0)\n  %c = f32[{size}] negate(%x), {gpu}\n"
    )
    branch += "  ROOT %z = f32[] constant(0)\n}}\n"
    text = branch.format(n=0, size=16, gpu=GPU) + branch.format(n=1, size=1 << 26, gpu=GPU)
    text += (
        "ENTRY %main (i: s32[], a: f32[16], b: f32[67108864]) -> f32[] {\n  %i = s32[] parameter(0)\n"
        "  %a = f32[16] parameter(1)\n  %b = f32[67108864] parameter(2)\n"
        "  ROOT %c = f32[] conditional(%i, %a, %b), branch_computations={%b0, %b1}\n}\n"
    )
    found = estimate(hlo_module(text), H100)
    assert found.parts[0].total == found.step_ns.low == 1_000
    assert found.step_ns.high > 8 * (1 << 26) / 3.352e12 * 1e9


def test_small_kernels_are_launch_bound_without_command_buffers() -> None:
    text = "ENTRY %main (p: f32[16]) -> f32[16] {\n  %p = f32[16] parameter(0)\n"
    before = "p"
    for number in range(50):
        text += f"  %n{number} = f32[16] negate(%{before}), {GPU}\n"
        before = f"n{number}"
    found = estimate(hlo_module(f"{text}  ROOT %r = f32[16] negate(%{before}), {GPU}\n}}\n"), H100)
    check(found)
    assert found.launches == 51
    assert found.host_bound
    assert found.step_ns.high >= found.host_ns.high == 51 * 5_000


def test_calls_as_deep_as_a_program_may_have() -> None:
    depth, text = MAX_CALL_DEPTH - 2, ""
    for level in range(depth):
        inner = f"call(%x), to_apply=%c{level - 1}" if level else f"negate(%x), {GPU}"
        text += f"%c{level} (x: f32[8]) -> f32[8] {{\n  %x = f32[8] parameter(0)\n  %y = f32[8] {inner}\n"
        text += f"  ROOT %z = f32[8] negate(%y), {GPU}\n}}\n"
    text += "ENTRY %main (x: f32[8]) -> f32[8] {\n  %x = f32[8] parameter(0)\n"
    found = estimate(hlo_module(f"{text}  ROOT %y = f32[8] call(%x), to_apply=%c{depth - 1}\n}}\n"), H100)
    check(found)
    assert found.launches == depth + 1


@pytest.mark.parametrize("wrong", ["not scheduled", "another platform"])
def test_what_no_time_can_be_said_of_is_refused_in_one_line(wrong: str) -> None:
    module = hlo_module(ASYNC, scheduled=wrong != "not scheduled")
    on = target("TPU v5e", (2, 4)) if wrong == "another platform" else H100X8
    with pytest.raises(DataError) as error:
        estimate(module, on)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("built.hlo.txt: ")


@pytest.mark.parametrize("file", FIXTURES[::4], ids=lambda file: file.name.removesuffix(".hlo.pb.xz"))
def test_every_program_adds_up(file: Path) -> None:
    (trace,) = load_all(file)
    for module in trace.hlo:
        found = estimate(module, H100)
        check(found)
        assert found.rows
        assert found.peak_bytes
        assert found.fits is (found.peak_bytes <= 84_942_979_072)


@pytest.mark.corpus
@pytest.mark.parametrize("file", corpus_files("aot", "*.hlo.*"), ids=lambda file: file.name)
def test_every_program_of_the_corpus_adds_up(file: Path) -> None:
    (trace,) = load_all(file)
    for module in trace.hlo:
        if module.platform == "cpu" or not module.is_scheduled:
            continue
        tpu = module.platform == "tpu"
        found = estimate(module, target("TPU v5e", (2, 4)) if tpu else H100X8)
        check(found)


@st.composite
def task_lists(draw: st.DrawFn) -> list[Task]:
    """Random tasks on a few streams that wait for random earlier ones."""
    tasks: list[Task] = []
    for index in range(draw(st.integers(0, 14))):
        stream = draw(st.integers(0, 3))
        waits = draw(st.lists(st.integers(0, index - 1), max_size=3, unique=True)) if index else []
        tasks.append(
            Task(
                kind=draw(st.sampled_from(PRIORITY)),
                stream=stream,
                duration=draw(st.integers(0, 9)),
                gap=draw(st.integers(0, 3)),
                waits=tuple(waits),
            )
        )
    return tasks


def by_moments(tasks: list[Task], played: Played) -> dict[str, int]:
    """The kind of each ns of the period, evaluated ns by ns."""
    counted = dict.fromkeys(("compute", "communication", "copy", "gap"), 0)
    for moment in range(played.makespan):
        kinds = {
            task.kind
            for task, start, end in zip(tasks, played.starts, played.ends, strict=True)
            if start <= moment < end
        }
        counted[next((kind for kind in PRIORITY if kind in kinds), "gap")] += 1
    return counted


@given(task_lists())
def test_parts_add_up_to_the_stretch_and_say_what_each_moment_was(tasks: list[Task]) -> None:
    played = play(tasks)
    counted = by_moments(tasks, played)
    parts = played.parts
    assert parts.total == played.makespan
    assert (parts.compute, parts.communication, parts.copies, parts.gaps) == (
        counted["compute"],
        counted["communication"],
        counted["copy"],
        counted["gap"],
    )
    assert sum(played.exposed) + parts.gaps == played.makespan
    assert all(shown <= task.duration for shown, task in zip(played.exposed, tasks, strict=True))


@given(task_lists())
def test_nothing_begins_before_what_it_waits_for(tasks: list[Task]) -> None:
    played = play(tasks)
    for index, task in enumerate(tasks):
        before = [other for other in range(index) if tasks[other].stream == task.stream]
        for other in (*before, *task.waits):
            assert played.starts[index] >= played.ends[other] + task.gap
        assert played.ends[index] - played.starts[index] == task.duration


@given(task_lists(), st.integers(0, 13), st.integers(1, 20))
def test_a_longer_task_never_shortens_the_whole(tasks: list[Task], which: int, more: int) -> None:
    if which >= len(tasks):
        return
    one = tasks[which]
    longer = [*tasks]
    longer[which] = Task(kind=one.kind, stream=one.stream, duration=one.duration + more, gap=one.gap, waits=one.waits)
    assert play(longer).makespan >= play(tasks).makespan


@given(task_lists())
def test_the_critical_path_has_no_slack(tasks: list[Task]) -> None:
    played = play(tasks)
    path = sorted(played.critical(), key=lambda index: (played.starts[index], index))
    assert sum(tasks[index].duration + tasks[index].gap for index in path) == played.makespan
    if path:
        assert played.ends[path[-1]] == played.makespan


def test_a_collective_beside_kernels_is_hidden_and_the_rest_of_it_exposed() -> None:
    kernel = Task(kind="compute", stream=0, duration=40)
    gather = Task(kind="communication", stream=1, duration=100, waits=(0,))
    beside = Task(kind="compute", stream=0, duration=30)
    user = Task(kind="compute", stream=0, duration=10, gap=5, waits=(1,))
    played = play([kernel, gather, beside, user])
    assert played.makespan == 40 + 100 + 5 + 10
    assert (played.parts.compute, played.parts.communication, played.parts.gaps) == (80, 70, 5)
    assert played.exposed[1] == 70
    assert played.critical() == {0, 1, 3}


def compiled(*names: str, count: int = 2) -> Trace:
    """Programs that were compiled for an H100."""
    trace = hlo_trace(*(chain(count, name=name) for name in names))
    return replace(trace, target=target("H100 SXM"))


def test_programs_without_a_target_have_no_part_in_it() -> None:
    assert estimate_section([hlo_trace(chain(2))]) == NO_ESTIMATE
    assert estimate_section([]) == NO_ESTIMATE


def test_rows_are_bounded_and_what_is_left_out_is_counted() -> None:
    found = estimate_section([compiled("jit_step", count=30)])
    (program,) = found.programs
    assert program.launched == 30
    assert len(program.estimate.rows) == section_module.MOST_ROWS
    assert program.rows_left == 10
    assert program.estimate.step_ns.low > 0


def test_programs_are_bounded_the_longest_first() -> None:
    trace = hlo_trace(*(chain(number + 1, name=f"jit_{number}") for number in range(10)))
    trace = replace(trace, target=target("H100 SXM"))
    found = estimate_section([trace])
    assert [one.label for one in found.programs] == [f"jit_{number}" for number in range(9, 1, -1)]
    assert found.programs_left == 2


def test_a_recording_beside_it_is_held_against_it() -> None:
    recording = recorded_trace(chain(2), ops=[("n0", 0, 50), ("n1", 50, 100)], runs=[1, 1])
    (program,) = estimate_section([compiled("jit_step"), recording]).programs
    assert program.calibration is not None
    assert program.calibration.run.step_ns == 100_000
    elsewhere = recorded_trace(chain(2), ops=[("n0", 0, 50)], runs=[1], device="NVIDIA A100-SXM4-80GB")
    (alone,) = estimate_section([compiled("jit_step"), elsewhere]).programs
    assert alone.calibration is None


def test_one_that_breaks_is_said_and_takes_no_other_along(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = predict.estimate

    def breaks(module, target, **more):  # type: ignore[no-untyped-def]
        if module.name == "jit_bad":
            raise RuntimeError("no luck")
        return whole(module, target, **more)

    monkeypatch.setattr(predict, "estimate", breaks)
    found = estimate_section([compiled("jit_bad", "jit_good")])
    assert [one.label for one in found.programs] == ["jit_good"]
    assert found.problems == ("the time of jit_bad could not be modelled: RuntimeError: no luck",)


def test_a_step_of_several_programs_by_their_calls(tmp_path: Path) -> None:
    files = [f"programs/{number}.hlo.pb" for number in range(3)]
    chains = (chain(3, name="jit_step"), chain(2, name="jit_half"), chain(50, name="jit_init"))
    modules = [replace(module, source=str(tmp_path / file)) for module, file in zip(chains, files, strict=True)]
    trace = hlo_trace(*modules)
    trace = replace(trace, target=target("H100 SXM"), source=replace(trace.source, path=str(tmp_path)))
    manifest = Compiled(
        framework="jax",
        created_utc="2026-01-01T00:00:00Z",
        name="x",
        command=("x.py",),
        target=CompiledTarget(
            asked="h100", device="H100 SXM", platform="gpu", count=1, topology=None, memory_bytes=None
        ),
        programs=tuple(
            CompiledProgram(file=file, name=module.name, calls=calls)
            for file, module, calls in zip(files, modules, (4, 8, 1), strict=True)
        ),
    )
    (tmp_path / "compile.json").write_bytes(dump(manifest))
    found = estimate_section([trace])
    assert found.step is not None
    assert found.step.steps == 4
    assert found.step.calls == (1.0, 2.0, None)
    times = {one.label: one.estimate.step_ns for one in found.programs}
    assert found.step.time.low == times["jit_step"].low + 2 * times["jit_half"].low
