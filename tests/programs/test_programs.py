"""One row per program: what ran, how long, the least it could take, and what of it is not known."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.devices import find_device
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.hlo.cost.module import module_cost
from perfscope.analyzers.hlo.device import program_device
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.roofline import program_roofs, roof_sum_ns
from perfscope.analyzers.hlo.time import hlo_time
from perfscope.analyzers.merge_programs import merge_programs
from perfscope.analyzers.programs.programs import Program, programs
from perfscope.analyzers.readers import load
from perfscope.analyzers.readers.hlo import text as hlo_text
from perfscope.analyzers.readers.hlo.program import join_programs
from perfscope.analyzers.readers.load import load_one, load_path
from perfscope.analyzers.sections import programs as home
from perfscope.analyzers.sections.programs import MOST_PROGRAMS, MOST_ROWS, MOST_SPOTS, programs_section
from perfscope.model.errors import DataError
from perfscope.model.finding import Finding, Outcome, Where
from perfscope.model.trace import Source, Trace
from tests.build import TraceBuilder
from tests.conftest import corpus_files
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace

H100 = "NVIDIA H100 80GB HBM3"


def step(name: str = "jit_step") -> HloModule:
    """A product of 4096 x 4096 bfloat16 matrices (2 * 4096^3 FLOPs) and its negation."""
    return hlo_module(
        f"""
        ENTRY main {{
          a = bf16[4096,4096]{{1,0}} parameter(0)
          dot = bf16[4096,4096]{{1,0}} dot(a, a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {GPU},
            metadata={{op_name="jit(step)/jvp(mlp)/dot_general" source_file="train.py" source_line=7}}
          ROOT neg = bf16[4096,4096]{{1,0}} negate(dot), {GPU},
            metadata={{op_name="jit(step)/transpose(jvp(mlp))/neg" source_file="train.py" source_line=9}}
        }}
        """.replace(f"{GPU},\n            metadata", f"{GPU}, metadata"),
        name,
    )


def loop(trips: int | None) -> HloModule:
    """A loop around an addition; ``None``: how often it runs is not known."""
    known = f', backend_config={{"known_trip_count":{{"n":"{trips}"}}}}' if trips is not None else ""
    return hlo_module(
        f"""
        body {{
          p = (f32[1024]{{0}}) parameter(0)
          x = f32[1024]{{0}} get-tuple-element(p), index=0
          add = f32[1024]{{0}} add(x, x), {GPU}
          ROOT t = (f32[1024]{{0}}) tuple(add)
        }}

        cond {{
          q = (f32[1024]{{0}}) parameter(0)
          ROOT more = pred[] constant(true)
        }}

        ENTRY main {{
          a = f32[1024]{{0}} parameter(0)
          start = (f32[1024]{{0}}) tuple(a)
          ROOT while = (f32[1024]{{0}}) while(start), condition=cond, body=body{known}
        }}
        """
    )


def only_program(trace: Trace) -> Program:
    (program,) = trace.fact(programs)
    return program


def test_a_program_alone_is_modelled_on_an_assumed_device_that_says_so() -> None:
    module = step()
    program = only_program(hlo_trace(module))
    assert (program.execution, program.utilization) == (None, None)
    assert program.flops == 2 * 4096**3 + 4096**2
    assert program.bytes == (2 + 2) * 2 * 4096**2  # the product reads one matrix once
    assert program.flops_by_phase == {"forward": 2 * 4096**3, "backward": 4096**2}
    assert program.exact
    device = find_device(H100)
    assert device is not None
    assert program.least is not None
    assert (program.least.device, program.least.assumed) == (f"{device.name} (assumed)", True)
    assert program.least.total_ns == pytest.approx(roof_sum_ns(program_roofs(module_cost(module), device)))
    assert sum(program.least.by_bound.values()) == pytest.approx(program.least.total_ns)
    assert program.least.bound == "compute"
    assert program.peak_known_by == "modelled"


def test_executions_time_and_use_are_measured() -> None:
    ops = [("dot", 0, 300), ("neg", 310, 350), ("dot", 1000, 1300), ("neg", 1310, 1350)]
    program = only_program(recorded_trace(step(), ops=ops, runs=[1, 1, 2, 2]))
    ran = program.execution
    assert ran is not None
    assert (ran.count, ran.devices, ran.counted) == (2, 1, True)
    assert (ran.instructions_ns, ran.span_ns, ran.run_ns) == (680_000, 700_000, 350_000)
    assert program.least is not None
    assert not program.least.assumed
    use = program.utilization
    device = find_device(H100)
    assert use is not None
    assert device is not None
    assert use.mfu == pytest.approx(2 * 4096**3 / (350e-6 * device.peak_flops["bfloat16"]))
    assert use.hfu == use.mfu  # nothing is computed again


def test_executions_that_are_not_numbered_are_what_most_instructions_agree_on() -> None:
    ops = [("dot", 0, 300), ("neg", 310, 350), ("dot", 1000, 1300), ("neg", 1310, 1350), ("neg", 1350, 1360)]
    ran = only_program(recorded_trace(step(), ops=ops)).execution
    assert ran is not None
    assert (ran.count, ran.counted, ran.span_ns) == (2, False, None)
    assert ran.run_ns == pytest.approx(690_000 / 2)


def test_devices_run_each_its_own_execution() -> None:
    ops = [("dot", 0, 300), ("dot", 5, 305), ("dot", 400, 700), ("dot", 405, 705)]
    ran = only_program(recorded_trace(step(), ops=ops, runs=[1, 1, 2, 2], ordinals=[0, 1, 0, 1])).execution
    assert ran is not None
    assert (ran.count, ran.devices, ran.span_ns) == (4, 2, 1_200_000)


def test_a_recording_that_names_no_device_has_no_roofline() -> None:
    program = only_program(recorded_trace(step(), ops=[("dot", 0, 300)], runs=[1], device=""))
    assert program.execution is not None
    assert (program.least, program.utilization) == (None, None)


def test_a_device_that_the_user_named_stands_for_one_that_is_not_recorded() -> None:
    trace = recorded_trace(step(), ops=[("dot", 0, 300)], runs=[1], device="")
    trace = replace(trace, judged_device=H100)
    program = only_program(trace)
    assert program.least is not None
    assert not program.least.assumed
    assert program.utilization is not None


def test_a_trip_count_that_is_not_known_makes_lower_bounds() -> None:
    known, unknown = only_program(hlo_trace(loop(8))), only_program(hlo_trace(loop(None)))
    assert (known.flops, known.exact) == (8 * 1024, True)
    assert (unknown.flops, unknown.exact) == (1024, False)
    assert known.least is not None
    assert unknown.least is not None
    assert (known.least.exact, unknown.least.exact) == (True, False)


def test_arithmetic_that_is_not_known_is_not_zero() -> None:
    call = hlo_module(
        f"""
        ENTRY main {{
          a = f32[64]{{0}} parameter(0)
          ROOT call = f32[64]{{0}} custom-call(a), custom_call_target="mine", {GPU}
        }}
        """
    )
    program = only_program(hlo_trace(call))
    assert (program.flops, program.unknown, program.exact) == (None, 1, False)
    assert program.least is not None
    assert not program.least.exact


def test_a_program_that_is_not_compiled_yet_has_arithmetic_alone() -> None:
    text = "ENTRY main {\n  a = f32[8,8]{1,0} parameter(0)\n  ROOT add = f32[8,8]{1,0} add(a, a)\n}\n"
    program = only_program(hlo_trace(hlo_module(text, scheduled=False)))
    assert (program.flops, program.bytes, program.peak_bytes, program.least) == (64, None, None, None)


def test_what_ran_and_was_not_recorded_has_a_row_and_the_times_add_up() -> None:
    trace = recorded_trace(step("jit_other"), ops=[("dot", 0, 300)], runs=[1])
    stranger = Trace(
        source=trace.source, strings=trace.strings, rows=trace.rows, recorded=trace.recorded, hlo=(step(),)
    )
    ran, alone = stranger.fact(programs)
    assert (ran.name, ran.module_index, ran.flops) == ("jit_other", None, None)
    assert ran.execution is not None
    assert ran.execution.instructions_ns == stranger.fact(hlo_time).total_ns == 300_000
    assert (alone.name, alone.execution) == ("jit_step", None)


def test_programs_of_one_name_are_told_apart() -> None:
    names = [program.name for program in hlo_trace(step(), step()).fact(programs)]
    assert len(set(names)) == 2


FILES = [*corpus_files("xplane", "*[0-9].xplane.pb.gz"), *corpus_files("aot", "*.xplane.pb.gz")]


@pytest.mark.corpus
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_time_of_all_programs_is_the_time_of_all_instructions(path: Path) -> None:
    trace = load.load_one(path)
    found = trace.fact(programs)
    ran = [program.execution for program in found if program.execution is not None]
    assert ran
    assert sum(one.instructions_ns for one in ran) == trace.fact(hlo_time).total_ns
    assert {program.module_index for program in found} >= set(range(len(trace.hlo)))
    for program in found:
        if program.flops is not None:
            assert sum(program.flops_by_phase.values()) == program.flops


BODY = "\n\nENTRY %main (p0: f32[8]) -> f32[8] {\n  %p0 = f32[8]{0} parameter(0)\n  ROOT %r = f32[8]{0} OP(%p0)\n}\n"


def program(path: Path, name: str = "jit_step", op: str = "negate", *, scheduled: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"HloModule {name}, is_scheduled={str(scheduled).lower()}{BODY.replace('OP', op)}"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_a_folder_of_programs_is_one_source(tmp_path: Path) -> None:
    files = [program(tmp_path / "a.txt"), program(tmp_path / "deep" / "b.hlo.txt.gz", op="exponential")]
    trace = load_one(tmp_path)
    assert (trace.source.path, trace.source.format, trace.source.rank) == (str(tmp_path), "hlo_text", None)
    assert trace.source.events_read == sum(load_one(file).source.events_read for file in files) == 4
    assert trace.source.programs == 2
    assert [module.source for module in trace.hlo] == [str(file) for file in files]
    assert trace.source.notes == (
        "these are 2 compiled programs, not recordings of a run: every number is modelled or structural",
    )


def test_a_damaged_program_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    program(tmp_path / "a.txt")
    program(tmp_path / "b.txt", op="tanh")
    (tmp_path / "c.txt").write_text("HloModule jit_cut, is_scheduled=true\n\nENTRY %main () -> f32[] {\n")
    loaded = load_path(tmp_path)
    (trace,) = loaded.traces
    assert trace.source.programs == 2
    assert [(Path(one.path).name, one.broken) for one in loaded.skipped] == [("c.txt", True)]
    assert trace.source.notes[-1].startswith("c.txt was not read: cut off")


def test_all_damaged_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("HloModule jit_cut, is_scheduled=true\n\nENTRY %main () -> f32[] {\n")
    with pytest.raises(DataError, match=r"no readable trace: c\.txt"):
        load_one(tmp_path)


def test_what_a_dump_wrote_twice_is_one_program(tmp_path: Path) -> None:
    stem = "module_0007.jit_step"
    program(tmp_path / f"{stem}.before_optimizations.txt", scheduled=False)
    program(tmp_path / f"{stem}.sm_9.0_gpu_after_optimizations.txt")
    program(tmp_path / f"{stem}.sm_9.0_gpu_after_optimizations.copy.txt")
    program(tmp_path / "module_0008.jit_step.before_optimizations.txt", op="tanh", scheduled=False)
    trace = load_one(tmp_path)
    assert [Path(module.source).name for module in trace.hlo] == [
        f"{stem}.sm_9.0_gpu_after_optimizations.copy.txt",  # the first of the two
        "module_0008.jit_step.before_optimizations.txt",
    ]
    early, left_out = trace.source.notes[1:]
    assert early.startswith("jit_step is the program before XLA optimized it")
    assert "module_0008.jit_step.before_optimizations.txt --target" in early  # the command that compiles it
    assert left_out == "left out: 1 unoptimized program, as the optimized form is there"


def test_the_same_program_in_two_folders_is_two(tmp_path: Path) -> None:
    program(tmp_path / "one" / "a.txt")
    program(tmp_path / "two" / "a.txt")
    assert load_one(tmp_path).source.programs == 2


def test_notes_of_the_files_stay(tmp_path: Path) -> None:
    traces = [hlo_text.read(program(tmp_path / name, op=op)) for name, op in (("a", "tanh"), ("b", "negate"))]
    first = traces[0].source
    odd = Trace(
        source=Source(path=first.path, format=first.format, rank=None, events_read=2, events_unplaced=0,
                      notes=("XLA's reasons are left out: cut off",), programs=1),
        strings=[], rows={}, recorded=frozenset({"hlo"}), hlo=traces[0].hlo,
    )  # fmt: skip
    assert join_programs([odd, traces[1]], "here").source.notes[-1] == "XLA's reasons are left out: cut off"


def test_beside_a_recording_programs_stay_what_they_were(tmp_path: Path) -> None:
    program(tmp_path / "a.txt")
    program(tmp_path / "b.txt", op="tanh")
    (tmp_path / "trace.json").write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": '
                                         '"aten::add", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}]}')  # fmt: skip
    assert sorted(trace.source.format for trace in load_path(tmp_path).traces) == ["hlo_text", "hlo_text", "kineto"]


def finding(subject: str = "slow", *, line: int = 3, cost_bytes: int = 0, cost_ns: int | None = None) -> Finding:
    return Finding(
        subject=subject, title=f"{cost_bytes} bytes", severity="low", basis="structural", advice="mend it",
        where=Where(file="step.py", line=line), cost_bytes=cost_bytes, cost_ns=cost_ns,
        evidence=tuple({"kernel": f"k{row}", "program": "jit_step", "moved_bytes": cost_bytes} for row in range(5)),
    )  # fmt: skip


def flagged(*findings: Finding) -> Outcome:
    return Outcome(rule="r", status="flagged", findings=findings)


def abstained(reason: str) -> Outcome:
    return Outcome(rule="r", status="abstained", reason=reason)


CLEAN = Outcome(rule="r", status="clean")


def test_the_same_place_in_several_programs_is_one_finding_about_the_worst() -> None:
    merged = merge_programs([flagged(finding(cost_bytes=5)), CLEAN, flagged(finding(cost_bytes=9))], ["a", "b", "c"])
    (found,) = merged.findings
    assert (merged.status, merged.reason) == ("flagged", None)
    assert (found.title, found.count) == ("c: 9 bytes", 2)
    assert found.cost_bytes == 9
    assert [row["program"] for row in found.evidence] == ["c"] * 3 + ["a"] * 3
    assert list(found.evidence[0]) == ["program", "kernel", "moved_bytes"]


def test_a_finding_of_one_program_keeps_all_its_rows() -> None:
    (found,) = merge_programs([flagged(finding(cost_bytes=5)), CLEAN], ["a", "b"]).findings
    assert found.title == "a: 5 bytes"
    assert len(found.evidence) == 5


def test_another_line_or_subject_is_another_finding() -> None:
    found = merge_programs([flagged(finding()), flagged(finding(line=4), finding("wide"))], ["a", "b"]).findings
    assert len(found) == 3


def test_a_time_counts_before_bytes() -> None:
    timed = finding(cost_bytes=1, cost_ns=7)
    (found,) = merge_programs([flagged(finding(cost_bytes=9)), flagged(timed)], ["a", "b"]).findings
    assert found.title.startswith("b: ")


def test_clean_only_if_all_were_looked_at() -> None:
    assert merge_programs([CLEAN, CLEAN], ["a", "b"]).status == "clean"
    partly = merge_programs([CLEAN, abstained("no schedule")], ["a", "b"])
    assert (partly.status, partly.reason) == ("abstained", "b: no schedule")
    found = merge_programs([flagged(finding()), abstained("no schedule")], ["a", "b"])
    assert (found.status, found.reason) == ("flagged", "b: no schedule")


def test_a_reason_that_all_share_names_none() -> None:
    assert merge_programs([abstained("for a CPU")] * 2, ["a", "b"]).reason == "for a CPU"
    many = merge_programs([abstained("for a CPU")] * 5 + [abstained("no schedule"), CLEAN], list("abcdefg"))
    assert many.reason == "a, b, c and 2 more: for a CPU; 1 more for other reasons"


def cpu_trace(instructions: int = 1) -> Trace:
    """Instructions of XLA's CPU backend of 70 us, 10 us of it in the call that began each; no module is recorded."""
    builder = TraceBuilder(recorded=frozenset({"host_ops"}))
    module = builder.code("jit_f")
    for index in range(instructions):
        start = 100_000 * index
        builder.row("hlo_ops", start_ns=start, end_ns=start + 70_000, launch_end_ns=start + 10_000,
                    name=builder.code(f"add.{index}"), module=module, program_id=3, run_id=1, ordinal=0,
                    encloses=False)  # fmt: skip
    return builder.build()


def test_no_programs() -> None:
    assert programs_section([TraceBuilder().build()]) == home.NO_PROGRAMS


def test_what_ran_on_the_cpu() -> None:
    section = programs_section([cpu_trace()])
    assert (section.on_cpu, section.ran, section.instructions_ns) == (True, 1, 70_000)
    (program,) = section.programs
    assert program.execution is not None
    assert program.execution.launch_ns == 10_000


def test_what_ran_on_a_device() -> None:
    assert not programs_section([recorded_trace(step(), ops=[("dot", 0, 300)], runs=[1])]).on_cpu


def test_programs_alone_did_not_run_anywhere() -> None:
    section = programs_section([hlo_trace(step())])
    assert (section.on_cpu, section.ran, section.instructions_ns) == (False, 0, 0)


def test_many_programs_and_instructions_are_bounded_and_counted() -> None:
    lines = "\n".join(f"  add.{i} = f32[1024]{{0}} add(a, a), {GPU}" for i in range(3 * MOST_ROWS))
    head, root = "ENTRY main {\n  a = f32[1024]{0} parameter(0)\n", f"  ROOT out = f32[1024]{{0}} copy(a), {GPU}\n}}\n"
    long = hlo_module(f"{head}{lines}\n{root}", "jit_long")
    section = programs_section([hlo_trace(long, *(loop(n + 1) for n in range(2 * MOST_PROGRAMS)))])
    assert (len(section.programs), section.programs_left) == (MOST_PROGRAMS, MOST_PROGRAMS + 1)
    assert (len(section.hot_spots), section.spots_left) == (MOST_SPOTS, 2 * MOST_PROGRAMS + 1 - MOST_SPOTS)
    (spots,) = [one for one in section.hot_spots if one.program == "jit_long"]
    assert len(spots.instructions) == MOST_ROWS
    left = spots.left["instructions"]
    assert left.count == 2 * MOST_ROWS + 1
    assert left.time_ns + sum(row.time_ns for row in spots.instructions) == spots.total_ns


def test_traces_are_summed_and_the_longest_stands_first() -> None:
    short = recorded_trace(step("jit_a"), ops=[("dot", 0, 10)], runs=[1])
    long = recorded_trace(step("jit_b"), ops=[("dot", 0, 90)], runs=[1])
    section = programs_section([short, long])
    assert [program.name for program in section.programs] == ["jit_b", "jit_a"]
    assert [spots.total_ns for spots in section.hot_spots] == [90_000, 10_000]
    assert (section.ran, section.instructions_ns) == (2, 100_000)


def test_what_breaks_is_said_and_costs_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Trace) -> None:
        raise KeyError("odd")

    monkeypatch.setattr("perfscope.analyzers.programs.programs", broken)
    held = analyze(hlo_trace(step()), rules=["unfused_ops"])
    assert held.programs.programs == ()
    assert held.programs.problems == ("the compiled programs could not be summed up: KeyError: 'odd'",)
    assert [outcome.rule for outcome in held.outcomes] == ["unfused_ops"]


def test_the_name_of_a_dump_says_for_which_cores_it_was_compiled() -> None:
    for architecture, label in (("gfx950", "MI355X (assumed for gfx950)"), ("sm_90", "H100 SXM (assumed for sm_90)"),
                                ("gfx000", "H100 SXM (assumed)"), (None, "H100 SXM (assumed)")):  # fmt: skip
        trace = hlo_trace(replace(step(), architecture=architecture))
        device = trace.fact(program_device)
        assert device is not None
        assert device.label() == label
