"""Shared objects that are written are loaded by the system's own loader; what real ones ask for is read."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from perfscope.__main__ import run
from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.readers.load import load_one
from perfscope.model.documents import compile_manifest
from perfscope.model.errors import DataError
from perfscope.plugins.ahead.targets import amd_stand_ins, plugins
from perfscope.plugins.ahead.targets.amd_stand_ins import load_stand_ins, stand_in_library
from perfscope.plugins.ahead.targets.amd_stand_ins.elf import (
    ElfRequirements,
    RequiredSymbol,
    StubFunction,
    elf_requirements,
    shared_object,
)

only_x86 = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not sysconfig.get_platform().endswith("x86_64"),
    reason="it is written for Linux on x86-64",
)


@only_x86
def test_the_loader_takes_what_is_written(tmp_path: Path) -> None:
    answers = [
        StubFunction(name="seven", number=7),
        StubFunction(name="most", number=0xFFFFFFFF),
        StubFunction(name="text", text=True),
        StubFunction(name="old", version="V_1", number=1),
        StubFunction(name="new", version="V_2.3", number=2),
        *(StubFunction(name=f"many_{number}", number=number) for number in range(500)),
    ]
    path = tmp_path / "libperfscope-written.so.1"
    path.write_bytes(shared_object(path.name, answers))
    held = ctypes.CDLL(str(path))
    assert (held.seven(), held.most(), held.old(), held.new()) == (7, -1, 1, 2)
    assert [getattr(held, f"many_{number}")() for number in range(500)] == list(range(500))
    held.text.restype = ctypes.c_char_p
    assert held.text() == b""
    assert not hasattr(held, "absent")
    versioned = ctypes.CDLL(None).dlvsym
    versioned.restype = ctypes.c_void_p
    versioned.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    assert versioned(held._handle, b"old", b"V_1")
    assert not versioned(held._handle, b"old", b"V_2.3")


@only_x86
def test_an_object_is_found_by_its_name_afterwards(tmp_path: Path) -> None:
    name = "libperfscope-by-name.so.3"
    (tmp_path / "another name").write_bytes(shared_object(name, [StubFunction(name="one", number=1)]))
    with pytest.raises(OSError, match="cannot open shared object"):
        ctypes.CDLL(name)
    held = ctypes.CDLL(str(tmp_path / "another name"))
    assert ctypes.CDLL(name).one() == held.one() == 1


@only_x86
def test_what_a_real_object_asks_for() -> None:
    path = next(Path(np.__file__).parent.rglob("_multiarray_umath*.so"))
    found = elf_requirements(path)
    assert "libc.so.6" in found.libraries
    names = {one.name: one for one in found.symbols}
    assert names["PyErr_SetString"] == RequiredSymbol(name="PyErr_SetString")
    of_c = [one for one in found.symbols if one.library == "libc.so.6"]
    assert of_c
    assert all(one.version.startswith("GLIBC_") for one in of_c)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(58), b"x" * 4096, bytes(1 << 16)])
def test_what_is_no_object_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"^library\.so: not a readable 64-bit shared object"):
        elf_requirements(path)


@only_x86
def test_every_cut_of_an_object_is_one_line(tmp_path: Path) -> None:
    real = next(Path(np.__file__).parent.rglob("_umath_linalg*.so")).read_bytes()
    path = tmp_path / "library.so"
    for at in range(0, len(real) // 2, len(real) // 40):
        path.write_bytes(real[:at])
        with suppress(DataError):  # any other error fails
            elf_requirements(path)


@only_x86
def test_a_stand_in_has_what_is_looked_for_in_it(tmp_path: Path) -> None:
    name = "libamdhip64.so.7"
    asked = ElfRequirements(
        libraries=(name,),
        symbols=(
            RequiredSymbol(name="hipMalloc", version="hip_4.2", library=name),
            RequiredSymbol(name="hipGetErrorString", version="hip_4.2", library=name),
            RequiredSymbol(name="hipInit"),
            RequiredSymbol(name="hipblasCreate"),
            RequiredSymbol(name="_ZTISt9exception"),
            RequiredSymbol(name="memcpy", version="GLIBC_2.14", library="libc.so.6"),
        ),
    )
    path = tmp_path / "libperfscope-stand-in.so"
    path.write_bytes(stand_in_library(name, asked).replace(b"libamdhip64.so.7", b"libamdhip64.so.x"))
    held = ctypes.CDLL(str(path))
    assert held.hipMalloc() == held.hipInit() == amd_stand_ins.NO_DEVICE
    held.hipGetErrorString.restype = ctypes.c_char_p
    assert held.hipGetErrorString() == b""
    assert b"hipblasCreate" not in path.read_bytes()  # another library's
    assert b"_ZTISt9exception" not in path.read_bytes()  # C++'s own


def test_a_library_that_nobody_knows_is_not_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ElfRequirements(libraries=("libc.so.6", "libsecret.so.1"), symbols=())
    monkeypatch.setattr(amd_stand_ins, "elf_requirements", lambda path: asked)
    with pytest.raises(DataError, match=r"plugin\.so needs libsecret\.so\.1, which this machine lacks"):
        load_stand_ins(Path("plugin.so"))


@pytest.mark.aot
@pytest.mark.jax
@pytest.mark.slow
@pytest.mark.skipif(
    not isinstance(plugins.find("gpu-amd"), plugins.Plugin),
    reason="no compiler for AMD GPUs here: PERFSCOPE_PLUGINS names none",
)
@pytest.mark.parametrize("target", ["mi300x", "mi355x"])
def test_a_program_is_compiled_without_rocm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "step = jax.jit(lambda w, x: w - jax.grad(lambda w: jax.nn.softmax(jnp.tanh(x @ w)).sum())(w))\n"
        "w = step(jnp.zeros((512, 512), jnp.bfloat16), jnp.ones((512, 512), jnp.bfloat16))\n"
    )
    assert run(["compile", "--target", target, "-q", "train.py"]) == 0
    (module,) = load_one("perfscope-runs/latest").hlo
    assert module.platform == "gpu"
    assert module.is_scheduled
    assert any(one.opcode == "fusion" for one in module.computations[module.entry].instructions)
    manifest = compile_manifest.load(Path("perfscope-runs/latest"))
    assert manifest.target.description["device"]["architecture"] == parse_target(target).device.architecture
    assert "jax-rocm7-pjrt" in manifest.versions
