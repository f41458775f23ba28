"""Bytes on the wire: the factors of nccl-tests, groups in every spelling, and each collective counted once."""

from __future__ import annotations

import pytest

from tests.analyzers.hlo.cost_text import ADD, cost, op_cost

GROUPS = "replica_groups={{0,1,2,3},{4,5,6,7}}"


@pytest.mark.parametrize(
    ("parameter", "op", "sent"),
    [
        # n = 4: all-reduce 2*3/4 of 4,096 B; gather 3/4 of the 16,384 B that come out; scatter and exchange 3/4 of
        # what goes in; permute and broadcast all of it
        ("f32[1024]", f"f32[1024] all-reduce(%p0), {GROUPS}, to_apply=%add", 6144),
        ("f32[1024]", f"f32[4096] all-gather(%p0), {GROUPS}, dimensions={{0}}", 12288),
        ("f32[4096]", f"f32[1024] reduce-scatter(%p0), {GROUPS}, dimensions={{0}}, to_apply=%add", 12288),
        ("f32[1024]", f"f32[1024] all-to-all(%p0), {GROUPS}, dimensions={{0}}", 3072),
        ("f32[1024]", "f32[1024] collective-permute(%p0), source_target_pairs={{0,1},{1,0}}", 4096),
        ("f32[1024]", f"f32[1024] collective-broadcast(%p0), {GROUPS}", 4096),
        ("f32[1024]", "f32[1024] all-reduce(%p0), replica_groups=[2,4]<=[8], to_apply=%add", 6144),
        ("f32[1024]", "f32[1024] all-reduce(%p0), replica_groups=mesh['a'=2,'b'=4] {'b'}, to_apply=%add", 6144),
        ("f32[1024]", "f32[1024] all-reduce(%p0), replica_groups={{0},{1}}, to_apply=%add", 0),
        # a device of the larger group sends the most: 2*2/3 of 4,096, rounded up
        ("f32[1024]", "f32[1024] all-reduce(%p0), replica_groups={{0,1,2},{3}}, to_apply=%add", 5462),
    ],
)
def test_factor(parameter: str, op: str, sent: int):
    assert op_cost([parameter], op, ADD if "to_apply" in op else "").once.wire_bytes == sent


@pytest.mark.parametrize(
    ("attributes", "devices"),
    [
        ("", 2),  # across replicas
        ("channel_id=1, ", 8),  # across partitions
        ("channel_id=1, use_global_device_ids=true, ", 16),
    ],
)
def test_without_groups_all_devices_take_part(attributes: str, devices: int):
    found = cost(
        f"""HloModule m, is_scheduled=true, num_partitions=8, replica_count=2
{ADD}
ENTRY %main (x: f32[1600]) -> f32[1600] {{
  %x = f32[1600] parameter(0)
  ROOT %r = f32[1600] all-reduce(%x), {attributes}to_apply=%add
}}
"""
    )
    assert found.total.wire_bytes == 2 * (devices - 1) * 6400 // devices


@pytest.mark.parametrize(
    ("start", "done", "sent", "written"),
    [
        ("f32[1024] all-reduce-start(%x), GROUPS, to_apply=%add", "f32[1024] all-reduce-done", 6144, 4096),
        (
            "(f32[1024], f32[4096]) all-gather-start(%x), GROUPS, dimensions={0}",
            "f32[4096] all-gather-done", 12288, 16384,
        ),
        (
            "((f32[1024]), f32[256]) reduce-scatter-start(%x), GROUPS, dimensions={0}, to_apply=%add",
            "f32[256] reduce-scatter-done", 3072, 1024,
        ),
        (
            "((f32[1024]), f32[1024]) all-to-all-start(%x), GROUPS, dimensions={0}",
            "f32[1024] all-to-all-done", 3072, 4096,
        ),
        (
            "(f32[1024], f32[1024], u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,1}}",
            "f32[1024] collective-permute-done", 4096, 4096,
        ),
        ("((f32[1024]), f32[1024], s32[]) async-start(%x), calls=%apart", "f32[1024] async-done", 3072, 4096),
    ],
)  # fmt: skip
def test_start_and_done_are_one_collective(start: str, done: str, sent: int, written: int):
    apart = """
%apart (x: f32[1024]) -> f32[1024] {
  %x = f32[1024] parameter(0)
  ROOT %all = f32[1024] all-to-all(%x), GROUPS, dimensions={0}
}
"""
    found = cost(
        f"""{ADD}{apart if "apart" in start else ""}
ENTRY %main (x: f32[1024]) -> f32[1] {{
  %x = f32[1024] parameter(0)
  %s = {start}
  ROOT %d = {done}(%s)
}}
""".replace("GROUPS", GROUPS)
    )
    assert found.total.wire_bytes == sent
    assert (found.total.bytes_read, found.total.bytes_written) == (4096, written)
    assert found.by_name["main", "d"].once.bytes == 0
    assert found.by_name["main", "s"].place == "launched"
    assert sum(row.total.wire_bytes for row in found.launched) == sent
    assert sum(part.wire_bytes for part in found.phases.values()) == sent


def test_copy_start_reads_its_operand_and_writes_its_destination():
    row = op_cost(["f32[1024]"], "(f32[1024], f32[1024], u32[]) copy-start(%p0)")
    assert (row.once.bytes_read, row.once.bytes_written) == (4096, 4096)
    to_host = op_cost(["f32[1024]"], "(f32[1024]{0:S(5)}, f32[1024], u32[]) copy-start(%p0)")
    assert (to_host.once.bytes_read, to_host.once.bytes_written, to_host.once.host_bytes) == (4096, 0, 4096)
    assert row.once.host_bytes == 0


def test_a_collective_that_runs_beside_tpu_fusions_counts_where_it_starts():
    body = """
%{name} (x: f32[1024]) -> {shape} {{
  %x = f32[1024] parameter(0)
  %gather.{name} = f32[4096] all-gather(%x), channel_id=7, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}
  ROOT %mark.{name} = {shape} custom-call(%gather.{name}), custom_call_target="{target}"
}}
"""
    both = "(f32[1024], f32[4096])"
    found = cost(
        body.format(name="begin", shape=both, target="AsyncCollectiveStart")
        + body.format(name="end", shape="f32[4096]", target="AsyncCollectiveDone")
        + f"""
ENTRY %main (x: f32[1024]) -> f32[4096] {{
  %x = f32[1024] parameter(0)
  %first = {both} fusion(%x), kind=kLoop, calls=%begin
  ROOT %last = f32[4096] fusion(%x), kind=kLoop, calls=%end
}}
"""
    )
    assert found.total.wire_bytes == 12288
    assert found.by_name["main", "first"].once.wire_bytes == 12288
    assert found.by_name["main", "last"].once.wire_bytes == 0
