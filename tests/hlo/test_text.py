"""HLO text into the model: what a line means, in every spelling that occurs."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.hlo.module import Alias, Shape
from perfscope.analyzers.hlo.parse.proto import module_of_proto
from perfscope.analyzers.hlo.parse.text import (
    OpenBracketError,
    aliases_of,
    closing,
    donors_of,
    module_of,
    pieces,
    unquoted,
)
from perfscope.model.errors import DataError
from tests.hlo.modules import ADD, instruction, parsed, program

PROGRAM = """ENTRY main {
  p = f32[4] parameter(0)
  ROOT n = f32[4] negate(p)
}"""


def test_entries_of_a_head() -> None:
    text = "{ {0}: (1, {}, may-alias), {1, 2}: (3, {4}, must-alias), {}: (5, {}) }"
    assert aliases_of(text) == (
        Alias(output=(0,), parameter=1),
        Alias(output=(1, 2), parameter=3, part=(4,)),
        Alias(output=(), parameter=5),
    )
    assert donors_of("{ (3, {}), (4, {1}) }") == ((3, ()), (4, (1,)))
    assert aliases_of("{}") == donors_of("{ }") == ()


def test_a_module_without_donation_has_none() -> None:
    module = module_of(["HloModule m", *PROGRAM.splitlines()], "m.txt")
    assert (module.aliases, module.donors) == ((), ())


def test_what_is_no_alias_is_refused_in_one_line() -> None:
    head = "HloModule m, input_output_alias={ {0}: 5 }"
    with pytest.raises(DataError, match=r"m\.txt: line 5: invalid donated parameters") as refused:
        module_of([head, *PROGRAM.splitlines()], "m.txt")
    assert "\n" not in str(refused.value)


@pytest.mark.jax
def test_text_and_proto_of_a_compiled_program_agree() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")

    def step(state: dict[str, object], x: object) -> object:
        return jax.tree.map(lambda one: one + x, state)

    zeros = jax.numpy.zeros((8, 8))
    lowered = jax.jit(step, donate_argnames="state").lower({"a": zeros, "b": zeros}, 1.0)
    compiled = lowered.compile()
    text = module_of(compiled.as_text().splitlines(), "step.txt")
    proto = module_of_proto(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto(), "step.pb")
    assert text.aliases == proto.aliases == (Alias(output=(0,), parameter=0), Alias(output=(1,), parameter=1))


@pytest.mark.corpus
def test_the_step_of_a_real_program_gives_its_state_away(corpus: Path) -> None:
    with gzip.open(corpus / "hlo_text" / "xla__hlo_llama3_8b_cp_bf16_1x4.hlo.gz", "rt") as lines:
        module = module_of(lines, "llama3")
    assert all(not one.part for one in module.aliases)
    outputs = len(module.entry_computation().root.shape.parts)
    assert {one.output[0] for one in module.aliases} <= set(range(outputs))
    assert len(module.aliases) > 0


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


def test_pieces_between_outermost_commas() -> None:
    assert pieces('a, {b, c}, "d, \\", e", f(g, [h, i])') == ["a", "{b, c}", '"d, \\", e"', "f(g, [h, i])"]
    assert pieces("  ") == []
    assert pieces(", a") == ["", "a"]
    with pytest.raises(OpenBracketError):
        pieces("a, (b")
    with pytest.raises(OpenBracketError):
        pieces('a, "b')
    with pytest.raises(ValueError, match="not opened"):
        pieces("a), b")


def test_closing_passes_over_quotes() -> None:
    text = 'f(a, "unmatched ( and \\" quote", {b})rest'
    assert text[closing(text, 1) :] == ")rest"
    with pytest.raises(OpenBracketError):
        closing('f("(', 1)


@pytest.mark.parametrize(
    ("quoted", "meant"),
    [
        ("plain", "plain"),
        ('"plain"', "plain"),
        ('"a \\"b\\" \\\\ \\n\\\'"', 'a "b" \\ \n\''),
        ('"\\303\\244"', "ä"),
        ('"\\377"', "\N{REPLACEMENT CHARACTER}"),
        ('"\\x41"', "A"),
        ('"', '"'),
    ],
)
def test_unquoted(quoted: str, meant: str) -> None:
    assert unquoted(quoted) == meant


names = st.text(st.sampled_from("ab %=/.-"), max_size=4)
nested = st.recursive(names, lambda inner: st.builds("({})".format, st.lists(inner).map(", ".join)), max_leaves=12)


@given(st.lists(nested.map(str.strip).filter(bool), min_size=1))
def test_pieces_of_what_was_joined(parts: list[str]) -> None:
    assert pieces(", ".join(parts)) == parts


LOOP = """HloModule m
%body (state: (f32[4], s32[])) -> (f32[4], s32[]) {
  %state = (f32[4], s32[]) parameter(0)
  %x = f32[4] get-tuple-element(%state), index=0
  %i = s32[] get-tuple-element(%state), index=1
  %mine = s32[] copy(%i)
  %step = s32[] constant(STEP)
  %next = s32[] NEXT
  ROOT %result = (f32[4], s32[]) tuple(%x, %next)
}
%condition (state: (f32[4], s32[])) -> pred[] {
  %state = (f32[4], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=1
  %n = s32[] constant(END)
  ROOT %go = pred[] compare(OPERANDS), direction=DIRECTION
}
ENTRY %main (x: f32[4], n: s32[]) -> (f32[4], s32[]) {
  %x = f32[4] parameter(0)
  %n = s32[] parameter(1)
  %zero = s32[] constant(BEGIN)
  %begin = s32[] copy(%zero)
  %start = (f32[4], s32[]) tuple(%x, FROM)
  ROOT %loop = (f32[4], s32[]) while(%start), condition=%condition, body=%body
}
"""
PLAIN = {
    "STEP": "1", "NEXT": "add(%mine, %step)", "END": "10", "OPERANDS": "%i, %n", "DIRECTION": "LT", "BEGIN": "0",
    "FROM": "%begin",
}  # fmt: skip


def trips(**changed: str) -> int | None:
    text = LOOP
    for key, value in {**PLAIN, **changed}.items():
        text = text.replace(key, value)
    return module_of(text.splitlines(keepends=True), "test").entry_computation().by_name["loop"].trip_count


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 10),
        ({"DIRECTION": "LE"}, 11),
        ({"BEGIN": "-2"}, 12),
        ({"STEP": "3"}, 4),  # 0 3 6 9
        ({"STEP": "3", "DIRECTION": "LE", "END": "9"}, 4),
        ({"STEP": "3", "END": "9"}, 3),
        ({"NEXT": "add(%step, %mine)"}, 10),
        ({"END": "0"}, 0),
        ({"BEGIN": "20"}, 0),
    ],
)
def test_a_loop_that_counts_up_to_a_constant(changed: dict[str, str], expected: int):
    assert trips(**changed) == expected


def test_counted_as_python_counts():
    for begin in range(-3, 4):
        for step in range(1, 4):
            assert trips(BEGIN=str(begin), STEP=str(step), END="3") == len(range(begin, 3, step))


@pytest.mark.parametrize(
    "changed",
    [
        {"FROM": "%n"},  # begins at the caller's position
        {"STEP": "0"},
        {"STEP": "-1"},
        {"NEXT": "multiply(%mine, %step)"},
        {"NEXT": "add(%mine, %mine)"},
        {"OPERANDS": "%n, %i"},
        {"OPERANDS": "%i, %i"},
        {"DIRECTION": "NE"},
        {"END": "99999999999"},  # no 32-bit number
    ],
)
def test_any_other_loop_stays_unknown(changed: dict[str, str]):
    assert trips(**changed) is None


def test_a_written_trip_count_is_kept():
    written = LOOP.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}')
    for key, value in PLAIN.items():
        written = written.replace(key, value)
    module = module_of(written.splitlines(keepends=True), "test")
    assert module.entry_computation().by_name["loop"].trip_count == 7
