"""Instructions of XLA programs spelled as HLO, made again from what was read of them."""

from __future__ import annotations

from perfscope.analyzers.hlo.module import Instruction, Shape


def shape_text(shape: Shape) -> str:
    """As HLO spells it, without layouts: ``bf16[8,128]``, ``(f32[], s32[4])``."""
    if shape.dtype == "tuple":
        return f"({', '.join(shape_text(part) for part in shape.parts)})"
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]"


def instruction_text(one: Instruction) -> str:
    """One line of HLO, made again from what was read of it."""
    parts = [f"{one.name} = {shape_text(one.shape)} {one.opcode}({', '.join(one.operands)})"]
    parts += [f"{key}={value}" for key, value in one.attributes.items()]
    called = ", ".join(one.called)
    named = (("kind", one.fusion_kind), ("calls", called), ("custom_call_target", one.custom_call_target))
    parts += [f"{key}={value}" for key, value in named if value]
    told = [f'op_name="{one.op_name}"'] if one.op_name else []
    told += [f'source_file="{one.file}"'] if one.file is not None else []
    told += [f"source_line={one.line}"] if one.line is not None else []
    if told:
        parts.append(f"metadata={{{' '.join(told)}}}")
    return f"{'ROOT ' if one.is_root else ''}{', '.join(parts)}"
