"""A printed FX graph (``GraphModule.print_readable(include_stride, include_device)``) as nodes.

```
def forward(self, primals_1: "f32[32, 16][16, 1]cpu"):
    # File: /x.py:10 in forward, code: y = torch.relu(self.a(x))
    permute: "f32[16, 32][1, 16]cpu" = torch.ops.aten.permute.default(primals_1, [1, 0]);  primals_1 = None
    return (permute,)
```
"""

from __future__ import annotations

import re

from perfscope.analyzers.readers.torch_log.records import MAX_ITEMS, clean
from perfscope.analyzers.readers.torch_log.unit import GraphText
from perfscope.model.compile_log import CodeLine, GraphNode

_NODE = re.compile(r'\s+([A-Za-z_]\w{0,511})(?:\s*:\s*"([^"]{0,4096})")?\s*= (.+)$')
_INPUT = re.compile(r'\b([A-Za-z_]\w{0,511})\s*+(?::\s*+"([^"]{0,4096})")?\s*+[,)]')
_FILE = re.compile(r"# .{0,200}?File: (.{1,4096}?):(\d{1,9})(?: in ([^,]{1,512}))?, code: ?(.*)$")
_CALL = re.compile(r"([A-Za-z_][\w.]{0,1023})\(")
_ITEM = re.compile(r"[A-Za-z_]\w*\[")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_WORD = re.compile(r"(?<![\w.'])[A-Za-z_]\w*")
_FLAG = re.compile(r"(?<![\w.])(?<!= )(True|False)\b")
"""Truth values by position; those by name (``implicit = True``) are not counted."""
_TYPE = re.compile(r"(?:Tensor\()?([a-z]+\d\w*)\[(.*?)\](?:\[|$|[a-z]|\))")
_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0fnu": "float8_e8m0fnu",
    "f4e2m1fnx2": "float4_e2m1fn_x2",
    "c64": "complex64",
    "c128": "complex128",
    "c32": "complex32",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u64": "uint64",
    "u32": "uint32",
    "u16": "uint16",
    "u8": "uint8",
    "b8": "bool",
}
"""``torch.utils._dtype_abbrs``, inverted."""
NO_CALL = "operator"
"""Op of a node printed as an expression of sizes, ``s27 * 4``."""


def parse(text: str) -> GraphText:
    """Return the nodes of the first ``forward`` in ``text``; subgraphs after it are separate graphs."""
    lines = text.split("\n")
    index = next((number for number, line in enumerate(lines) if line.lstrip().startswith("def forward(")), None)
    if index is None:
        return GraphText()
    header, index = _header(lines, index)
    inputs = tuple(_input(name, annotation) for name, annotation in _INPUT.findall(header) if name != "self")
    known = {node.name for node in inputs}
    nodes: list[GraphNode] = []
    code_line: CodeLine | None = None
    for line in lines[index:]:
        stripped = line.lstrip()
        if stripped.startswith("#"):
            code_line = _place(stripped, code_line)
        elif stripped.startswith("return"):
            return GraphText(tuple(nodes), inputs, _names(stripped[len("return") :], known))
        elif stripped.startswith(("class ", "def ")):
            break
        else:
            node = _node(line, known, code_line)
            if node is not None:
                nodes.append(node)
                known.add(node.name)
    return GraphText(tuple(nodes), inputs)


def arguments(text: str) -> tuple[str, ...]:
    """Return the names of the inputs of the first ``forward`` in ``text``."""
    lines = text.split("\n")
    index = next((number for number, line in enumerate(lines) if line.lstrip().startswith("def forward(")), None)
    if index is None:
        return ()
    header, _ = _header(lines, index)
    return tuple(name for name, _ in _INPUT.findall(header) if name != "self")[:MAX_ITEMS]


def is_backward(graph: GraphText) -> bool:
    """Return whether it takes gradients, which AOT autograd names ``tangents_1`` ..."""
    return any(node.name.startswith("tangents_") for node in graph.inputs)


def _header(lines: list[str], index: int) -> tuple[str, int]:
    """Return the signature, which may span many lines, and the line after it."""
    collected = [lines[index].split("def forward(", 1)[1]]
    while not collected[-1].rstrip().endswith(":") and index + 1 < len(lines):
        index += 1
        collected.append(lines[index].split("  # ", 1)[0])
    return " ".join(collected), index + 1


def _input(name: str, text: str) -> GraphNode:
    dtype, shape = _type(text)
    return GraphNode(name=name, op="placeholder", dtype=dtype, shape=shape)


def _node(line: str, known: set[str], code_line: CodeLine | None) -> GraphNode | None:
    match = _NODE.match(line)
    if match is None:
        return None
    value = match[3].split(";  ", 1)[0]
    dtype, shape = _type(match[2] or "")
    return GraphNode(
        name=match[1], op=_op(value), inputs=_names(value, known), dtype=dtype, shape=shape, place=code_line,
        flags=tuple(word == "True" for word in _FLAG.findall(_QUOTED.sub("''", value))[:MAX_ITEMS]),
    )  # fmt: skip


def _op(value: str) -> str:
    call = _CALL.match(value)
    if call is not None:
        return clean(call[1].removeprefix("torch.ops."), 300)
    if _ITEM.match(value):
        return "getitem"
    return "get_attr" if value.startswith("self.") else NO_CALL


def _names(value: str, known: set[str]) -> tuple[str, ...]:
    words = _WORD.findall(_QUOTED.sub("''", value))
    return tuple(dict.fromkeys(word for word in words if word in known))


def _place(comment: str, before: CodeLine | None) -> CodeLine | None:
    match = _FILE.match(comment)
    if match is not None:
        function = clean(match[3]) if match[3] else None
        return CodeLine(
            file=clean(match[1], 4096), line=int(match[2]), function=function, code=clean(match[4].strip()) or None
        )
    return None if comment.startswith("# No stacktrace") else before


def _type(text: str) -> tuple[str | None, tuple[int | str, ...]]:
    match = _TYPE.match(text)
    if match is None:
        return None, ()
    return _DTYPES.get(match[1], match[1]), _sizes(match[2])


def _sizes(annotation: str) -> tuple[int | str, ...]:
    sizes: list[int | str] = []
    depth, collected = 0, ""
    for letter in f"{annotation},":
        if letter == "," and not depth:
            text = collected.strip()
            if text:
                sizes.append(int(text) if text.isdigit() and len(text) < 19 else clean(text, 200))
            collected = ""
            continue
        depth += (letter in "([") - (letter in ")]")
        collected += letter
    return tuple(sizes[:MAX_ITEMS])
