"""HLO text into the model: what a line means, in every spelling that occurs."""

from __future__ import annotations

import pytest

from perfscope.analyzers.hlo.module import Shape
from perfscope.profiler.errors import DataError
from tests.analyzers.hlo.programs import ADD, instruction, parsed, program

TABLES = """FileNames
1 "/home/me/train.py"
2 "/home/me/.venv/lib/python3.12/site-packages/flax/linen/linear.py"
3 "/home/me/my \\"model\\".py"

FunctionNames
1 "<module>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=10 end_line=10 column=1 end_column=5}
2 {file_name_id=3 function_name_id=1 line=20 end_line=20 column=1 end_column=5}
3 {file_name_id=2 function_name_id=1 line=30 end_line=30 column=1 end_column=5}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}
4 {file_location_id=3 parent_frame_id=2}
"""


def test_a_fusion_with_everything() -> None:
    found = instruction(
        "  ROOT %add_fusion.1 = bf16[4,8]{1,0:T(8,128)(2,1)S(1)} fusion(%p, %q), kind=kLoop, calls=%add,"
        ' metadata={op_name="jit(f)/jvp(mlp)/add" stack_frame_id=0 scheduling_name="fusion.7"},'
        ' backend_config={"operation_queue_id":"0","nested":{"a":[1,2]}}, control-predecessors={%p}',
        before=ADD,
    )
    assert (found.name, found.opcode, found.is_root) == ("add_fusion.1", "fusion", True)
    assert found.shape == Shape(dtype="bf16", dims=(4, 8), layout=(1, 0), memory_space=1)
    assert (found.operands, found.called, found.fusion_kind) == (("p", "q"), ("add",), "kLoop")
    assert (found.op_name, found.scheduling_name) == ("jit(f)/jvp(mlp)/add", "fusion.7")
    assert found.backend_config == {"operation_queue_id": "0", "nested": {"a": [1, 2]}}
    assert found.attributes == {"control-predecessors": "{%p}"}


@pytest.mark.parametrize(
    "operands",
    [
        "%p, %q",
        "p, q",
        "f32[8]{0} %p, f32[8]{0} %q",
        "f32[8] p, f32[8] q",
        "/*index=0*/%p, /*index=1*/ %q",
        "(f32[8]{0}, /*index=1*/s32[]) %p, f32[8]{0:T(128)} %q",
    ],
)
def test_operands_typed_or_not_with_percent_or_not(operands: str) -> None:
    assert instruction(f"  ROOT %r = f32[8]{{0}} add({operands})").operands == ("p", "q")


def test_a_tuple_shape_with_index_comments() -> None:
    line = "  ROOT %t = (f32[8]{0}, (s32[], /*index=1*/pred[2,2]{0,1}), /*index=5*/token[]) tuple(%p, %q)"
    shape = instruction(line).shape
    assert shape.dtype == "tuple"
    assert shape.parts[1].parts == (Shape(dtype="s32", layout=()), Shape(dtype="pred", dims=(2, 2), layout=(0, 1)))
    assert shape.parts[2].dtype == "token"
    assert shape.bytes == 32 + 4 + 4


@pytest.mark.parametrize(
    ("line", "called"),
    [
        ("while(%p), condition=%add, body=%other", ("add", "other")),
        ("while(%p), body=%other, condition=%add", ("add", "other")),
        ("conditional(%p, %q, %q), branch_computations={%add, %other}", ("add", "other")),
        ("conditional(%p, %q, %q), true_computation=%add, false_computation=%other", ("add", "other")),
        ("call(%p), to_apply=%add", ("add",)),
        ('custom-call(%p), custom_call_target="x", called_computations={%other, %add}', ("other", "add")),
        ("async-start(%p), calls=%add", ("add",)),
        ("select-and-scatter(%p, %q, %q), select=%add, scatter=%other", ("add", "other")),
    ],
)
def test_computations_that_are_called(line: str, called: tuple[str, ...]) -> None:
    before = ADD + ADD.replace("%add ", "%other ")
    found = instruction(f"  ROOT %r = f32[8]{{0}} {line}", before=before)
    assert found.called == called
    assert not found.attributes


def test_attributes_of_collectives() -> None:
    found = instruction(
        "  ROOT %r = f32[8]{0} all-reduce(%p), channel_id=3, replica_groups=mesh['x'=2,'y'=2],"
        " device_ids=([2,2]T(1,0)) {'y'}, use_global_device_ids=true, to_apply=%add, frontend_attributes={k=\"a, b\"}",
        before=ADD,
    )
    assert found.channel_id == 3
    assert found.replica_groups == ((0, 2), (1, 3))
    assert found.attributes == {"use_global_device_ids": "true", "frontend_attributes": '{k="a, b"}'}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"known_trip_count":{"n":"12"}}', 12),
        ('"{\\"known_trip_count\\":{\\"n\\":\\"12\\"}}"', 12),
        ('{"known_trip_count":{"n":12}}', 12),
        ('{"known_trip_count":{"n":"many"}}', None),
        ('{"known_trip_count":{"n":-1}}', None),
        ("{attn_heads = 4 : i64}", None),
        ('"\\000\\377"', None),
    ],
)
def test_trip_counts(config: str, expected: int | None) -> None:
    before = ADD + ADD.replace("%add ", "%other ")
    line = f"  ROOT %r = f32[8]{{0}} while(%p), condition=%add, body=%other, backend_config={config}"
    assert instruction(line, before=before).trip_count == expected


def test_a_configuration_nested_too_deep_to_parse_is_none() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert instruction(f'  ROOT %r = f32[8]{{0}} copy(%p), backend_config={{"a":{deep}}}').backend_config == {}


def test_literals_are_skipped_over_lines_and_parameters_numbered() -> None:
    module = parsed(
        program(
            "  %p = f32[8]{0} parameter(0)\n"
            "  %big = f32[2,2]{1,0} constant({\n    { 1, 2 },\n    { 3, nan }\n  })\n"
            "  %s = s8[3]{0} constant({...})\n"
            '  ROOT %r = f32[8]{0} copy(%p), metadata={op_name="x)}]" source_file="a.py" source_line=7}'
        )
    )
    entry = module.entry_computation()
    assert [one.opcode for one in entry.instructions] == ["parameter", "constant", "constant", "copy"]
    assert [one.operands for one in entry.instructions] == [(), (), (), ("p",)]
    assert entry.instructions[0].parameter_number == 0
    assert (entry.root.op_name, entry.root.file, entry.root.line) == ("x)}]", "a.py", 7)


@pytest.mark.parametrize(
    ("frame", "place"),
    [
        (1, ("/home/me/train.py", 10)),
        (2, ('/home/me/my "model".py', 20)),
        (3, ('/home/me/my "model".py', 20)),  # its innermost frame is a library's
        (4, ("/home/me/train.py", 10)),
        (0, (None, None)),
        (99, (None, None)),
    ],
)
def test_the_users_line_from_stack_frames(frame: int, place: tuple[str | None, int | None]) -> None:
    line = f'  ROOT %r = f32[8]{{0}} copy(%p), metadata={{op_name="x" stack_frame_id={frame}}}'
    found = instruction(line, before=TABLES)
    assert (found.file, found.line) == place


def test_headers_old_and_new() -> None:
    new = "HloModule jit_f, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }, num_partitions=8"
    new += ", replica_count=2"
    bodies = (
        "\n\nENTRY %main.3 (p: f32[8]) -> f32[8] {\n  ROOT %p = f32[8]{0} parameter(0)\n}\n",
        "\n\nENTRY main.3 {\n  ROOT p = f32[8]{0} parameter(0)\n}\n",
        "\n// a comment\n\nENTRY %main.3 (p: (f32[8], /*index=1*/s32[])) -> f32[8] {\n"
        '  ROOT %p = f32[8] parameter(0)\n}, execution_thread="main"\n',
    )
    for body in bodies:
        module = parsed(new + body)
        assert (module.name, module.entry, module.is_scheduled) == ("jit_f", "main.3", True)
        assert (module.num_partitions, module.num_replicas) == (8, 2)
    old = parsed("HloModule IrToHlo.3979\n" + bodies[0])
    assert (old.name, old.is_scheduled, old.num_partitions, old.platform) == ("IrToHlo.3979", False, 1, None)


@pytest.mark.parametrize(
    ("line", "header", "expected"),
    [
        ('copy(%p), backend_config={"operation_queue_id":"0"}', ", is_scheduled=true", "gpu"),
        ('copy(%p), metadata={scheduling_name="r"}', ", is_scheduled=true", "gpu"),
        ('copy(%p), backend_config={"outer_dimension_partitions":["2"]}', ", is_scheduled=true", "cpu"),
        ('custom-call(%p), custom_call_target="__cublas$gemm"', ", is_scheduled=true", "gpu"),
        ('custom-call(%p), custom_call_target="__cublas$gemm"', "", None),
        ("copy(%p)", ", is_scheduled=true", None),
    ],
)
def test_the_platform_is_told_from_the_content(line: str, header: str, expected: str | None) -> None:
    text = program(f"  %p = f32[8]{{0}} parameter(0)\n  ROOT %r = f32[8]{{0}} {line}", header=header)
    assert parsed(text).platform == expected
    assert parsed(text.replace("f32[8]{0} ", "f32[8]{0:T(128)} ")).platform == "tpu"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("  %p = f32[8]{0}", "line 5: no opcode after the shape"),
        ("  hello", "line 5: neither an instruction nor the end of a computation"),
        ("  %p = q99[8]{0} parameter(0)", "line 5: unknown element type 'q99'"),
        ("  %p = f32[?]{0} parameter(0)", "line 5: invalid literal for int() with base 10: '?'"),
        (f"  %p = f32[{'1,' * 99}1] parameter(0)", "line 5: a shape of 100 dimensions"),
        (f"  %p = f32[{2**63}] parameter(0)", "line 5: a dimension that is negative or beyond 64 bits"),
        (f"  %p = {'(' * 99}f32[]{')' * 99} parameter(0)", "line 5: tuples nested more than 64 deep"),
        ("  %r = f32[] copy(%gone)", "line 6: 'r' in computation 'main' uses 'gone', which is not defined before it"),
        ("  %r = f32[] call(), to_apply=%gone", "line 6: computation 'main' calls 'gone', which is not in the module"),
        ("  %r = f32[] call(), to_apply=%main", "line 6: computation 'main' calls itself"),
        ("  %r = f32[] iota()\n  %r = f32[] iota()", "line 7: computation 'main' defines 'r' twice"),
        (
            "  %r = f32[] all-gather(), replica_groups=[1000000,1000000]<=[1000000000000]",
            "line 5: replica groups of 1,000,000,000,000 devices: more than any machine has",
        ),
        ("", "line 5: neither an instruction nor the end of a computation"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(lines: str, said: str) -> None:
    text = program(lines) if lines else program("  x\n").replace("  x", "  %p")
    with pytest.raises(DataError) as caught:
        parsed(text)
    assert str(caught.value) == f"m.txt: {said}"


def test_a_chain_of_calls_is_bounded_and_a_wide_one_is_not() -> None:
    def chain(length: int) -> str:
        made = ["%c0 (a: f32[]) -> f32[] {\n  ROOT %a = f32[] parameter(0)\n}\n"]
        made += [
            f"%c{n} (a: f32[]) -> f32[] {{\n  %a = f32[] parameter(0)\n"
            f"  ROOT %r = f32[] call(%a), to_apply=%c{n - 1}\n}}\n"
            for n in range(1, length)
        ]
        return "".join(made)

    entry = "  %p = f32[] parameter(0)\n  ROOT %r = f32[] call(%p), to_apply=%c{}"
    assert len(parsed(program(entry.format(149), before=chain(150))).computations) == 151
    with pytest.raises(DataError, match="call one another more than 200 deep"):
        parsed(program(entry.format(20_000 - 1), before=chain(20_000)))


def test_a_second_module_or_entry_is_refused() -> None:
    text = program("  ROOT %p = f32[8]{0} parameter(0)")
    with pytest.raises(DataError, match="a second module begins"):
        parsed(text + text)
    with pytest.raises(DataError, match="a second ENTRY computation"):
        parsed(text + text.partition("\n")[2])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not HLO text, or cut off in its first line"),
        ("HloModule x, alias={ {0}: (", "not HLO text, or cut off in its first line"),
        ("HloModule x\n", "cut off: no ENTRY computation in 1 lines, 0 instructions were read"),
        ("HloModule x\n\n" + ADD, "cut off: no ENTRY computation in 7 lines, 3 instructions were read"),
        ("HloModule x\n\n" + ADD[:90], "cut off in computation 'add': the last line is 6, 2 instructions were read"),
    ],
)
def test_a_text_that_is_cut_off_says_where(text: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        parsed(text)
    assert str(caught.value) == f"m.txt: {said}"


@pytest.mark.parametrize(
    "tail",
    [
        "metadata={" + "a" * 300_000 + "}",
        'metadata={op_name="' + "a" * 300_000,
        "metadata={" + "a=" * 150_000 + "}",
        "frontend_attributes={" + '\\"' * 150_000,
        "replica_groups={" + "{0," * 100_000,
        "replica_groups={" + "{0}," * 100_000 + "}",
        "sharding={" + "/*" * 150_000 + "}",
        "x" * 300_000,
        ", " * 150_000,
    ],
)
def test_long_hostile_lines_take_time_in_proportion(tail: str) -> None:
    """A pattern that goes back over what it read would take hours here."""
    for line in (f"  ROOT %r = f32[8]{{0}} copy(%p), {tail}", f"  ROOT %r = f32[8]{{0}} copy(%p{tail}, %q)"):
        said = ""
        try:
            instruction(line)
        except DataError as error:
            said = str(error)
        assert len(said) < 300
