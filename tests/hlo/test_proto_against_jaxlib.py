"""Text and proto of one module give one model: jaxlib prints the text of every proto of the corpus."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.hlo.parse.proto import module_of_proto
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.analyzers.hlo.protos import message
from tests.conftest import corpus_files
from tests.hlo.modules import differences

FILES = [*corpus_files("aot", "*.hlo.pb.gz"), *corpus_files("hlo_pb")]

pytestmark = pytest.mark.jax
jaxlib_hlo: Any = pytest.importorskip("jaxlib._hlo", reason="jaxlib with its HLO bindings is not installed")


def content(path: Path) -> bytes:
    unpack = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)
    return unpack(path.read_bytes())


def printed(module: bytes) -> str:
    text: str = jaxlib_hlo.HloModule.from_serialized_hlo_module_proto(module).to_string()
    return text


@pytest.mark.slow
@pytest.mark.corpus
@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_text_and_proto_give_the_same_model(path: Path) -> None:
    data = content(path)
    proto = message("hlo.HloProto").FromString(data).hlo_module
    text = printed(proto.SerializeToString())
    # jaxlib parses the GPU's configuration and prints it anew, without fields that are empty
    ignored = frozenset[str]() if path.parent.name == "aot" else frozenset({"backend_config"})
    found = module_of_proto(data, "m")
    assert sum(1 for _ in found.instructions()) > 10
    assert list(differences(found, module_of(text.splitlines(), "m"), ignored)) == []


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"replica_groups": [{"replica_ids": [0, 1]}, {"replica_ids": [3, 2]}]}, ((0, 1), (3, 2))),
        ({"collective_device_list": {"replica_groups": [{"replica_ids": [0, 1, 2, 3]}]}}, ((0, 1, 2, 3),)),
        (
            {"iota_collective_device_list": {"num_replica_groups": 4, "num_devices_per_group": 2,
                                             "iota_reshape_dims": [2, 4], "iota_transpose_perm": [1, 0]}},
            ((0, 4), (1, 5), (2, 6), (3, 7)),
        ),
        (
            {"mesh_axes_replica_group_list": {
                "mesh": {"axes": [{"name": "x", "size": 2}, {"name": "y", "size": 4}],
                         "iota_transform": {"reshape_dims": [4, 2], "transpose_perm": [1, 0]}},
                "axes": [{"mesh_axis_index": 1, "sub_axis_info": {"pre_size": 2, "size": 2}}]}},
            ((0, 2), (4, 6), (1, 3), (5, 7)),
        ),
        (
            {"mesh_axes_replica_group_list": {
                "mesh": {"axes": [{"name": "x", "size": 2}, {"name": "y", "size": 2}], "device_ids": [3, 2, 1, 0]},
                "axes": [{"mesh_axis_index": 0}]}},
            ((3, 1), (2, 0)),
        ),
    ],
)  # fmt: skip
def test_replica_groups_as_jaxlib_spells_them(groups: dict[str, Any], expected: tuple[tuple[int, ...], ...]) -> None:
    source = (
        "HloModule m\n%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n"
        "  ROOT %c = f32[] add(%a, %b)\n}\nENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        "  ROOT %r = f32[8]{0} all-reduce(%p), channel_id=1, replica_groups={{0}}, use_global_device_ids=true, "
        "to_apply=%add\n}\n"
    )
    module = message("hlo.HloModuleProto").FromString(
        jaxlib_hlo.hlo_module_from_text(source).as_serialized_hlo_module_proto()
    )
    (reduce,) = (one for computation in module.computations for one in computation.instructions if one.name == "r")
    for field in ("collective_device_list", "iota_collective_device_list", "mesh_axes_replica_group_list"):
        reduce.ClearField(field)
    del reduce.replica_groups[:]
    reduce.MergeFrom(message("hlo.HloInstructionProto")(**groups))
    data = module.SerializeToString()
    assert module_of_proto(data, "m").entry_computation().root.replica_groups == expected
    assert module_of(printed(data).splitlines(), "m").entry_computation().root.replica_groups == expected


@pytest.mark.parametrize(
    "sharding",
    [
        "{replicated}",
        "{manual}",
        "{maximal device=3}",
        "{devices=[4]<=[4]}",
        "{devices=[2,2]<=[4] last_tile_dim_replicate}",
        "{devices=[2,4]<=[4,2]T(1,0) last_tile_dim_replicate}",
        "{devices=[4]3,1,2,0}",
        "{devices=[2,2]<=[4] last_tile_dims={manual}}",
        "{devices=[1,2,2]<=[4] last_tile_dims={manual, replicated}}",
    ],
)
def test_shardings_as_jaxlib_spells_them(sharding: str) -> None:
    parameter = f"  ROOT %p = f32[8]{{0}} parameter(0), sharding={sharding}"
    source = f"HloModule m\nENTRY %main (p: f32[8]) -> f32[8] {{\n{parameter}\n}}\n"
    data = jaxlib_hlo.hlo_module_from_text(source).as_serialized_hlo_module_proto()
    spelt = module_of(printed(data).splitlines(), "m").entry_computation().root.attributes
    assert spelt["sharding"].startswith("{")
    assert module_of_proto(data, "m").entry_computation().root.attributes == spelt
