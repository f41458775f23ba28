"""Programs out of a trace, on messages built by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.profiler.jax import hlo


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def module(name: bytes) -> bytes:
    return text(1, name) + text(3, number(5, 1)) + number(5, 300) + number(6, 1)


def test_name_and_number() -> None:
    assert hlo.name_and_id(module(b"jit_step")) == ("jit_step", 300)


@given(st.binary(max_size=40_000))
def test_a_module_that_is_wrapped_comes_out_again(proto: bytes) -> None:
    assert hlo.module_of(hlo.as_proto(proto)) == proto


def space(*planes: bytes) -> bytes:
    return b"".join(text(1, plane) for plane in planes) + text(4, b"host")


def metadata_plane(name: bytes, proto: bytes) -> bytes:
    stat = number(1, 9) + text(6, proto)
    event = number(1, 1) + text(2, name) + text(5, number(1, 8) + number(3, 1)) + text(5, stat)
    names = text(5, number(1, 9) + text(2, number(1, 9) + text(2, b"Hlo Proto")))
    names += text(5, number(1, 8) + text(2, number(1, 8) + text(2, b"program_id")))
    return number(1, 1) + text(2, b"/host:metadata") + text(4, number(1, 1) + text(2, event)) + names


def test_programs_are_found_in_their_plane_alone() -> None:
    found = hlo.modules(space(text(2, b"/host:CPU"), metadata_plane(b"jit_step(3)", b"PROTO")))
    assert found == [hlo.Module("jit_step(3)", b"PROTO")]


@given(st.integers(min_value=1))
def test_a_trace_that_is_cut_off_is_refused_or_shorter(cut: int) -> None:
    whole = space(metadata_plane(b"jit_step(3)", bytes(500)))
    part = whole[: cut % len(whole)]
    try:
        found = hlo.modules(part)
    except ValueError:
        return
    assert len(found) <= 1


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for read in (hlo.modules, hlo.name_and_id):
        try:
            read(content)
        except ValueError:
            continue


def test_names_of_hosts_are_cut_out_and_nothing_else() -> None:
    plane, error = b"\x0a\x03abc", b"\x12\x02no"
    host = b"\x22\x06node17"
    assert hlo.without_hosts(plane + host + error + host) == plane + error
    assert hlo.without_hosts(b"") == b""
    for malformed in (plane[:-1], b"\x08\x01", b"\x22"):
        with pytest.raises(ValueError):
            hlo.without_hosts(malformed)
