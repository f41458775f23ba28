"""The walk back through views, against the arrays that random programs really hand around."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.hlo.module import Computation, Instruction
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.analyzers.hlo.views import (
    SAME_BUFFER,
    SAME_ORDER,
    fusions_of,
    made_by,
    path,
    path_across,
    sources,
    updated_operand,
)

ARRAY = "f32[8]"


@st.composite
def computations(draw: st.DrawFn) -> Computation:
    """One computation of arrays, views, tuples, and tuples in tuples."""
    lines, shapes = [f"%p = {ARRAY} parameter(0)", f"%q = ({ARRAY}, {ARRAY}) parameter(1)"], {"p": 0, "q": 2}
    texts = {"p": ARRAY, "q": f"({ARRAY}, {ARRAY})"}
    for number in range(draw(st.integers(1, 12))):
        name, opcode = (
            f"v{number}",
            draw(st.sampled_from(("bitcast", "copy", "add", "tuple", "element", "opt-barrier"))),
        )
        arrays = [each for each, parts in shapes.items() if not parts]
        operands = draw(st.lists(st.sampled_from(arrays if opcode in ("bitcast", "copy", "add") else sorted(shapes)),
                                 min_size=1, max_size=3))  # fmt: skip
        first = operands[0]
        if opcode == "element":
            first = draw(st.sampled_from([each for each, parts in shapes.items() if parts]))
            index = draw(st.integers(0, shapes[first] - 1))
            inner = _parts(texts[first])[index]
            lines.append(f"%{name} = {inner} get-tuple-element(%{first}), index={index}")
        elif opcode == "tuple":
            inner = f"({', '.join(texts[each] for each in operands)})"
            lines.append(f"%{name} = {inner} tuple({', '.join('%' + each for each in operands)})")
        else:
            operands = [first, first] if opcode == "add" else [first]
            inner = texts[first]
            lines.append(f"%{name} = {inner} {opcode}({', '.join('%' + each for each in operands)})")
        texts[name], shapes[name] = inner, len(_parts(inner))
    lines[-1] = "ROOT " + lines[-1]
    body = "\n".join("  " + line for line in lines)
    return module_of(
        f"HloModule m\n\nENTRY %main () -> {ARRAY} {{\n{body}\n}}\n".splitlines(keepends=True), "test"
    ).entry_computation()


def _parts(text: str) -> list[str]:
    """Shapes of the parts of a tuple's shape."""
    found, depth = [""], 0
    for char in text[1:-1] if text.startswith("(") else "":
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            found.append("")
        else:
            found[-1] += char
    return [part.strip() for part in found if part]


def _values(computation: Computation) -> dict[str, Any]:
    """Run the computation: an array is the instruction that made it, with the way into its tuple."""
    found: dict[str, Any] = {}
    for instruction in computation.instructions:
        operands = [found[name] for name in instruction.operands]
        if instruction.opcode == "tuple":
            value: Any = operands
        elif instruction.opcode == "get-tuple-element":
            value = operands[0][int(instruction.attributes["index"])]
        elif instruction.opcode in SAME_BUFFER:
            value = operands[0]
        else:
            value = [(instruction.name, (part,)) for part in range(len(instruction.shape.parts))]
            value = value or (instruction.name, ())
        found[instruction.name] = value
    return found


def _leaves(value: Any) -> set[Any]:
    return {value} if isinstance(value, tuple) else set().union(*map(_leaves, value))


@given(computations())
def test_sources_are_what_running_the_program_hands_around(computation: Computation) -> None:
    values = _values(computation)
    for name, parts in sources(computation).items():
        flat = not any(isinstance(part, list) and len(part) != 1 for part in values[name])
        held = {source for part in parts for source in part}
        assert held >= _leaves(values[name])
        if flat and not any(shape.parts for one in computation.instructions for shape in one.shape.parts):
            assert held == _leaves(values[name])


@given(computations())
def test_a_path_ends_at_what_made_the_array(computation: Computation) -> None:
    values = _values(computation)
    for instruction in computation.instructions:
        if not instruction.shape.parts:
            made, part = list(path(computation, instruction.name))[-1]
            assert (made.name, part) == values[instruction.name]


@given(computations())
def test_a_path_through_given_opcodes_is_the_plain_loop(computation: Computation) -> None:
    for instruction in computation.instructions:
        made: Instruction = instruction
        while made.opcode in SAME_ORDER and made.operands:
            made = computation.by_name[made.operands[0]]
        assert made_by(computation, instruction.name, SAME_ORDER) is made


FUSED = """HloModule m, is_scheduled=true

%inner (a: f32[8], b: f32[8]) -> f32[8] {
  %a = f32[8] parameter(0)
  %b = f32[8] parameter(1)
  ROOT %c = f32[8] convert(%b)
}

%update (x: f32[8], y: f32[1], i: s32[]) -> f32[8] {
  %x = f32[8] parameter(0)
  %y = f32[1] parameter(1)
  %i = s32[] parameter(2)
  %z = f32[8] bitcast(%x)
  ROOT %u = f32[8] dynamic-update-slice(%z, %y, %i)
}

ENTRY %main (p: f32[8], q: f32[8], r: f32[1], s: s32[]) -> f32[8] {
  %p = f32[8] parameter(0)
  %q = f32[8] parameter(1)
  %r = f32[1] parameter(2)
  %s = s32[] parameter(3)
  %n = f32[8] negate(%q)
  %f = f32[8] fusion(%p, %n), kind=kLoop, calls=%inner
  %t = f32[8] copy(%f)
  ROOT %g = f32[8] fusion(%t, %r, %s), kind=kLoop, calls=%update
}
"""


def test_a_path_across_fusions_goes_in_and_out() -> None:
    module = module_of(FUSED.splitlines(keepends=True), "test")
    steps = path_across(module, fusions_of(module), module.computations["update"], "z")
    assert [one.name for _, one in steps] == ["z", "x", "t", "f", "c", "b", "n"]


CALLED = """\
HloModule jit_step, is_scheduled=true

%parallel_convert (p: bf16[8]) -> f32[8] {
  %p = bf16[8] parameter(0)
  ROOT %c = f32[8] convert(%p)
}

%shared (s: f32[8]) -> f32[8] {
  %s = f32[8] parameter(0)
  ROOT %h = f32[8] copy(%s)
}

ENTRY %main (w: bf16[8], x: f32[8]) -> (f32[8], f32[8], f32[8]) {
  %w = bf16[8] parameter(0)
  %x = f32[8] parameter(1)
  %k = f32[8] call(%w), to_apply=%parallel_convert
  %first = f32[8] call(%x), to_apply=%shared
  %second = f32[8] call(%k), to_apply=%shared
  ROOT %out = (f32[8], f32[8], f32[8]) tuple(%k, %first, %second)
}
"""


def test_a_path_goes_through_a_call_and_out_of_what_one_call_calls() -> None:
    module = module_of(CALLED.splitlines(keepends=True), "test")
    steps = path_across(module, fusions_of(module), module.computations["main"], "k")
    assert [one.name for _, one in steps] == ["k", "c", "p", "w"]
    several = path_across(module, fusions_of(module), module.computations["shared"], "h")
    assert [one.name for _, one in several] == ["h", "s"], "two calls: it is either value"


def test_a_fusion_updates_the_operand_that_its_root_is_written_into() -> None:
    module = module_of(FUSED.splitlines(keepends=True), "test")
    entry = module.entry_computation()
    assert [updated_operand(module, entry.by_name[name]) for name in ("f", "g", "n")] == [None, 0, None]
