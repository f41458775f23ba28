"""Roofs of instructions on named devices, by hand; MFU and HFU."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.devices import Device, find_device
from perfscope.analyzers.devices.roofline import peak_flops
from perfscope.analyzers.hlo.cost.module import hlo_costs
from perfscope.analyzers.hlo.roofline import (
    compute_ns,
    measured_roofline,
    program_roofs,
    roof_of,
    roof_sum_ns,
    utilization,
)
from perfscope.analyzers.hlo.time import HloTime, InstructionTime, hlo_time
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.model.trace import Source, Trace
from tests.hlo.modules import ADD_COMPUTATION, cost, op_cost

DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def device(name: str) -> Device:
    found = find_device(name)
    assert found is not None
    return found


H100 = device("NVIDIA H100 80GB HBM3")
V5E = device("TPU v5 lite")


def test_a_large_product_is_bound_by_compute():
    row = op_cost(["bf16[4096,4096]"] * 2, f"bf16[4096,4096] dot(%p0, %p1), {DOT}")
    roof = roof_of(row, H100)
    assert roof.bound == "compute"
    assert roof.roof_ns == pytest.approx(2 * 4096**3 / 989.4e12 * 1e9)  # 139 us
    assert roof.memory_ns == pytest.approx(3 * 4096**2 * 2 / 3352e9 * 1e9)  # 30 us


def test_an_elementwise_op_is_bound_by_memory():
    roof = roof_of(op_cost(["f32[1048576]"] * 2, "f32[1048576] add(%p0, %p1)"), H100)
    assert roof.bound == "memory"
    assert roof.roof_ns == pytest.approx(3 * 4 * 2**20 / 3352e9 * 1e9)
    assert roof.compute_ns == pytest.approx(2**20 / 66.9e12 * 1e9)


def test_a_collective_is_bound_by_the_links():
    row = op_cost(
        ["f32[1048576]"], "f32[1048576] all-reduce(%p0), replica_groups={{0,1,2,3}}, to_apply=%add", ADD_COMPUTATION
    )
    roof = roof_of(row, H100)
    assert roof.bound == "link"
    assert roof.roof_ns == pytest.approx(1.5 * 4 * 2**20 / 450e9 * 1e9)
    no_links = roof_of(row, device("NVIDIA L4"))
    assert (no_links.bound, no_links.link_ns) == ("unknown", None)


def test_a_copy_from_the_host_has_no_bound():
    row = op_cost(["f32[1048576]{0:S(5)}"], "(f32[1048576], f32[1048576]{0:S(5)}, u32[]) copy-start(%p0)")
    roof = roof_of(row, H100, measured_ns=1e6)
    assert (roof.bound, roof.link_ns, roof.headroom_ns) == ("unknown", None, None)


def test_unknown_arithmetic_leaves_the_bound_unknown_and_the_memory_time_as_a_floor():
    row = op_cost(["f32[1048576]"], 'f32[1048576] custom-call(%p0), custom_call_target="mine"')
    roof = roof_of(row, H100, measured_ns=1e6)
    assert (roof.bound, roof.compute_ns, roof.headroom_ns, roof.share_of_roof) == ("unknown", None, None, None)
    assert roof.roof_ns == pytest.approx(2 * 4 * 2**20 / 3352e9 * 1e9)


@pytest.mark.parametrize(
    ("dtype", "precision", "on", "tera"),
    [
        ("bf16", "default", H100, 989.4),
        ("f32", "default", H100, 494.7),  # XLA takes TF32 unless told otherwise
        ("f32", "highest", H100, 66.9),
        ("f32", "dot_bf16_bf16_f32_x3", H100, 989.4 / 3),
        ("f8e4m3fn", "default", H100, 1978.9),
        ("f32", "default", V5E, 197),
        ("f32", "high", V5E, 197 / 3),
        ("f32", "highest", V5E, 197 / 6),
        ("s8", "default", V5E, 393),
        ("f32", "default", device("Tesla V100-SXM2-16GB"), 15.7),
    ],
)
def test_peak_of_a_product(dtype: str, precision: str, on: Device, tera: float):
    assert peak_flops(on, dtype, precision) == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    ("dtype", "precision", "on"),
    [("f64", "default", H100), ("f8e5m2", "default", V5E), ("f32", "dot_of_tomorrow", V5E)],
)
def test_a_peak_nobody_states_is_unknown(dtype: str, precision: str, on: Device):
    assert peak_flops(on, dtype, precision) is None
    row = op_cost([f"{dtype}[8,8]"] * 2, f"{dtype}[8,8] dot(%p0, %p1), {DOT}, algorithm={precision}")
    assert precision == "default" or compute_ns(row.once, on) is None


def test_headroom_is_what_lies_above_the_roof_in_all_runs():
    row = op_cost(["f32[1048576]"] * 2, "f32[1048576] add(%p0, %p1)")
    roof = roof_of(row, H100, measured_ns=10_000)
    assert roof.headroom_ns == pytest.approx(10_000 - roof.roof_ns)
    assert roof.share_of_roof == pytest.approx(roof.roof_ns / 10_000)
    cached = roof_of(row, H100, measured_ns=1_000)
    assert cached.headroom_ns == 0
    assert cached.share_of_roof is not None
    assert cached.share_of_roof > 1
    assert roof_of(row, H100).headroom_ns is None


STEP = """
%body (x: bf16[512,512]) -> bf16[512,512] {
  %x = bf16[512,512] parameter(0)
  ROOT %y = bf16[512,512] dot(%x, %x), DOT, metadata={op_name="jit(f)/jvp()/while/body/dot_general"}
}
%test (x: bf16[512,512]) -> pred[] {
  %x = bf16[512,512] parameter(0)
  ROOT %go = pred[] constant(true)
}
ENTRY %main (x: bf16[512,512]) -> bf16[512,512] {
  %x = bf16[512,512] parameter(0)
  %loop = bf16[512,512] while(%x), condition=%test, body=%body, backend_config={"known_trip_count":{"n":"4"}}
  ROOT %again = bf16[512,512] dot(%loop, %x), DOT, metadata={op_name="jit(f)/transpose(jvp())/checkpoint/rematted_computation/dot_general"}
}
""".replace("DOT", DOT)  # noqa: E501


def test_the_roofline_of_a_program_counts_loops():
    found = cost(STEP)
    roofs = program_roofs(found, H100, {("body", "y"): 5_000.0})
    assert [(roof.row.instruction.name, roof.row.runs) for roof in roofs] == [("again", 1), ("y", 4)]
    # both are bound by memory: the loop's reads one array and writes one, the last reads two
    inside, last = (arrays * 512 * 512 * 2 / 3352e9 * 1e9 for arrays in (2, 3))
    assert {roof.bound for roof in roofs} == {"memory"}
    assert roof_sum_ns(roofs) == pytest.approx(4 * inside + last)
    assert roofs[1].headroom_ns == pytest.approx(4 * (5_000 - inside))
    assert roofs[0].measured_ns is None


def test_no_headroom_is_claimed_where_the_number_of_runs_is_not_known():
    found = cost(STEP.replace(', backend_config={"known_trip_count":{"n":"4"}}', ""))
    roofs = program_roofs(found, H100, {("body", "y"): 5_000.0})
    assert next(roof for roof in roofs if roof.row.computation == "body").headroom_ns is None


def test_mfu_leaves_recomputation_out_and_hfu_does_not():
    found = cost(STEP)
    time_ns = 10_000.0
    ideal = 2 * 512**3 / 989.4e12 * 1e9
    used = utilization(found, H100, time_ns)
    assert used is not None
    assert used.mfu == pytest.approx(4 * ideal / time_ns)
    assert used.hfu == pytest.approx(5 * ideal / time_ns)
    assert used.exact
    assert utilization(found, H100, 0) is None
    unbounded = utilization(cost(STEP.replace(', backend_config={"known_trip_count":{"n":"4"}}', "")), H100, time_ns)
    assert unbounded is not None
    assert not unbounded.exact
    elementwise = cost(
        "ENTRY %main (x: f32[8]) -> f32[8] {\n  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] add(%x, %x)\n}\n"
    )
    assert utilization(elementwise, H100, time_ns) is None


def test_the_programs_of_a_trace_are_counted_once_each():
    module = cost(STEP).module
    source = Source(path="x", format="hlo_text", rank=None, events_read=0, events_unplaced=0)
    trace = Trace(source=source, strings=[], rows={}, recorded=frozenset({"hlo"}), hlo=(module, module))
    found = trace.fact(hlo_costs)
    assert [one.total.flops for one in found] == [5 * 2 * 512**3] * 2
    assert trace.fact(hlo_costs) is found


def measured(**times: tuple[str, int, int]) -> HloTime:
    """Times by instruction: computation, pieces of work, their sum in ns."""
    rows = {
        (0, name): InstructionTime(
            module="m", program_id=None, instruction=name, module_index=0, computation=computation, calls=calls,
            total_ns=total, launch_ns=total, encloses=False,
        )
        for name, (computation, calls, total) in times.items()
    }  # fmt: skip
    return HloTime(instructions=tuple(rows.values()), by_key=rows, total_ns=0, unmatched_ns=0)


def run_times(text: str, times: HloTime | None) -> dict[str, float | None]:
    source = Source(path="x", format="xplane", rank=None, events_read=0, events_unplaced=0)
    trace = Trace(source=source, strings=[], rows={}, recorded=frozenset({"hlo"}), hlo=(cost(text).module,))
    if times is not None:
        trace._facts[hlo_time] = times
    return {roof.row.instruction.name: roof.measured_ns for roof in measured_roofline(trace, H100)[0]}


def test_times_of_a_trace_become_times_of_one_run():
    assert run_times(STEP, None) == {"y": None, "again": None}
    # the program ran three times, its loop four times each
    found = run_times(STEP, measured(y=("body", 12, 12_000), again=("main", 3, 9_000)))
    assert found == {"y": pytest.approx(1_000), "again": pytest.approx(3_000)}
    # the last product is two kernels each time: 6 pieces and 12/4 disagree, the smaller number of executions counts
    found = run_times(STEP, measured(y=("body", 12, 12_000), again=("main", 6, 9_000)))
    assert found["again"] == pytest.approx(3_000)
    # the trace ends inside the last execution: 11 turns of the loop are 11 runs
    found = run_times(STEP, measured(y=("body", 11, 11_000), again=("main", 3, 9_000)))
    assert found["y"] == pytest.approx(1_000)
    # an instruction of that name in another computation is another one
    assert run_times(STEP, measured(y=("main", 12, 12_000)))["y"] is None


def test_in_a_loop_of_unknown_length_a_piece_of_work_is_a_run():
    unknown = STEP.replace(', backend_config={"known_trip_count":{"n":"4"}}', "")
    found = run_times(unknown, measured(y=("body", 12, 12_000), again=("main", 3, 9_000)))
    assert found == {"y": pytest.approx(1_000), "again": pytest.approx(3_000)}


@pytest.mark.corpus
def test_a_real_tpu_stays_below_its_roof(corpus: Path):
    trace = xspace_reader.read(corpus / "xplane" / "xprof__tpu_inference_2.xplane.pb.gz")
    v6e = device(trace.text(int(trace.rows["devices"]["name"][0])))
    assert v6e.name == "TPU v6e"
    shares = {
        roof.row.instruction.name: roof.share_of_roof
        for roofs in measured_roofline(trace, v6e)
        for roof in roofs
        if roof.row.instruction.opcode == "fusion" and roof.measured_ns
    }
    # three fusions read 5 GiB and write 5 GiB each: 6.6 ms at 1,638 GB/s
    assert len(shares) == 3
    assert all(0.7 < share <= 1 for share in shares.values())
