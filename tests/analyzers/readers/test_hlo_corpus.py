"""Real modules: each reads or is refused in one line, and holds what an independent count finds."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.scope import scope_of
from perfscope.analyzers.load import load_one
from perfscope.profiler.errors import DataError
from tests.conftest import corpus_files

CUT_OFF = "maxtext__reference_hlo_llama3_8b.txt.gz"
"""Cut to 2,000 lines by its authors: the entry is missing."""
TEXTS = [one for one in (*corpus_files("aot", "*.hlo.txt.gz"), *corpus_files("hlo_text")) if one.name != CUT_OFF]
PROTOS = [*corpus_files("aot", "*.hlo.pb.gz"), *corpus_files("hlo_pb")]

pytestmark = pytest.mark.corpus

# the first word with an opening bracket behind a space that follows the end of a shape
OPCODE = re.compile(r"^\s+(?:ROOT )?%?\S+ = .*?[\])}] ([a-z][a-z0-9-]*)\(", re.MULTILINE)
PLATFORMS = {"gpu_": "gpu", "tpu_": "tpu", "md_": "cpu"}


def named(path: Path) -> str:
    return path.name


def module_of(path: Path) -> HloModule:
    trace = load_one(path)
    trace.check()
    (module,) = trace.hlo
    return module


def opcodes(module: HloModule) -> Counter[str]:
    return Counter(one.opcode for _, one in module.instructions())


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_opcodes_equal_a_count_by_pattern(path: Path) -> None:
    text = gzip.decompress(path.read_bytes()).decode()
    module = module_of(path)
    assert opcodes(module) == Counter(OPCODE.findall(text))
    assert sum(opcodes(module).values()) > 50
    assert module.num_partitions == int((re.search(r"num_partitions=(\d+)", text) or ["", 1])[1])
    for start, platform in PLATFORMS.items():
        if path.name.startswith(start):
            assert module.platform == platform


@pytest.mark.jax
@pytest.mark.parametrize("path", [one for one in TEXTS if one.parent.name == "aot"], ids=named)
def test_operands_equal_those_of_jaxlib(path: Path) -> None:
    jaxlib_hlo: Any = pytest.importorskip("jaxlib._hlo", reason="jaxlib with its HLO bindings is not installed")
    theirs = jaxlib_hlo.hlo_module_from_text(gzip.decompress(path.read_bytes()).decode())
    # by place in the computation: jaxlib renames what has the name of an instruction elsewhere
    expected = {}
    for one in theirs.computations():
        parts = one.instructions()
        place = {part.name: at for at, part in enumerate(parts)}
        expected[one.name] = [tuple(place[operand.name] for operand in part.operands()) for part in parts]
    found = {}
    for name, computation in module_of(path).computations.items():
        place = {part.name: at for at, part in enumerate(computation.instructions)}
        found[name] = [tuple(place[operand] for operand in part.operands) for part in computation.instructions]
    # an asynchronous call of one operation is written without the computation that jaxlib makes of it
    assert found == {name: expected[name] for name in found}
    extra = expected.keys() - found.keys()
    starts = [part for one in theirs.computations() for part in one.instructions() if "kAsyncStart" in str(part.opcode)]
    assert len(extra) == len(starts)


@pytest.mark.parametrize("path", PROTOS, ids=named)
def test_protos_read(path: Path) -> None:
    module = module_of(path)
    assert sum(opcodes(module).values()) > 10
    assert module.platform == (None if "before_optimizations" in path.name else "gpu")
    assert (module.buffer_assignment is None) == ("before_optimizations" in path.name)
    assert module.is_scheduled == ("before_optimizations" not in path.name)


def test_a_program_dumped_both_ways_is_the_same_program(corpus: Path) -> None:
    text = module_of(corpus / "aot" / "gpu_attn_blocked.hlo.txt.gz")
    proto = module_of(corpus / "aot" / "attn_blocked.hlo.pb.gz")
    assert opcodes(text) == opcodes(proto)
    assert {one.trip_count for _, one in proto.instructions() if one.opcode == "while"} == {4}


def test_a_module_that_its_authors_cut_off_is_refused_in_one_line(corpus: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_one(corpus / "hlo_text" / CUT_OFF)
    assert str(caught.value).endswith(
        "cut off in computation 'fused_computation.195.clone.1': the last line is 2,000, 1,459 instructions were read"
    )


def test_stablehlo_is_refused_in_one_line(corpus: Path) -> None:
    with pytest.raises(DataError, match=r"StableHLO \(MLIR\), the program before XLA compiled it"):
        load_one(corpus / "stablehlo" / "levanter__train_step.hlo.txt.gz")


def test_lines_and_scopes_of_the_mixture_of_experts(corpus: Path) -> None:
    module = module_of(corpus / "aot" / "gpu_moe_ragged.hlo.txt.gz")
    places = [one for _, one in module.instructions() if "experts" in scope_of(one.op_name).path]
    assert len(places) > 20
    assert {Path(one.file or "").name for one in places if one.file} == {"wl.py"}


def test_replica_groups_of_a_two_by_four_mesh(corpus: Path) -> None:
    module = module_of(corpus / "aot" / "md_smap.hlo.txt.gz")
    groups = {one.replica_groups for _, one in module.instructions() if one.replica_groups is not None}
    assert groups
    for one in groups:
        assert sorted(device for group in one for device in group) == list(range(8))
