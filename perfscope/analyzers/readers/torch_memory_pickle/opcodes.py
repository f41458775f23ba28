"""The opcodes that the machine knows, and what those ask for that it refuses."""

from __future__ import annotations

HANDLERS: dict[tuple[str, ...], str] = {
    ("\x80",): "_protocol", ("\x95",): "_frame", ("(",): "_mark", ("N",): "_none", ("\x88",): "_true",
    ("\x89",): "_false", ("K",): "_one_byte", ("M",): "_two_bytes", ("J",): "_four_bytes", ("\x8a",): "_long",
    ("G",): "_float", ("\x8c",): "_short_text", ("X",): "_long_text", ("\x8d",): "_longer_text",
    ("h",): "_get_short", ("j",): "_get_long", ("q",): "_put_short", ("r",): "_put_long", ("\x94",): "_memoize",
    (")",): "_empty_tuple", ("t",): "_tuple", ("\x85",): "_tuple1", ("\x86",): "_tuple2", ("\x87",): "_tuple3",
    ("]",): "_empty_list", ("}",): "_empty_dict", ("a",): "_append", ("e",): "_appends", ("s",): "_set_item",
    ("u",): "_set_items", ("0", "1"): "_pop",
}  # fmt: skip
"""The allow-list. ``POP`` is written by pickle only for a container within itself."""

_NAMED = {
    "c": "it asks for a class (GLOBAL)",
    "\x93": "it asks for a class (STACK_GLOBAL)", "i": "it asks for a class (INST)",
    "R": "it would call something (REDUCE)", "b": "it would build an object (BUILD)", "o": "it would build an object",
    "\x81": "it would build an object (NEWOBJ)", "\x92": "it would build an object (NEWOBJ_EX)",
    "\x82": "it asks for an extension", "\x83": "it asks for an extension", "\x84": "it asks for an extension",
    "P": "it asks for a persistent object", "Q": "it asks for a persistent object",
}  # fmt: skip


def said(code: int) -> str:
    """Why the opcode is refused."""
    return _NAMED.get(chr(code), f"opcode 0x{code:02x}, which no memory snapshot has")
