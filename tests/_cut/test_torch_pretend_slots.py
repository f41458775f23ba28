"""Places of virtual functions are read from headers, those of the installed torch among them."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from perfscope._cut.torch_pretend_fit import unfit
from perfscope._cut.torch_pretend_slots import slots_of

BASE = """
#pragma once
// virtual void in_a_comment();
struct TORCH_API Base {
  virtual ~Base() = default;
  virtual bool built() const { if (true) { return false; } return true; }
  /* virtual int gone(); */
  virtual int count(int which = 0) const = 0;
  int plain() { return 3; }
};
"""
DERIVED = """
class Derived : public Base {
 public:
  ~Derived() override = default;
  int count(int which) const override { CHECK(false, "a } in a text, virtual too"); }
  virtual long more() const { return 1; }
#ifdef USE_ROCM
  virtual bool only_there() const { return false; }
#endif
  virtual std::string last() const;
};
"""


def test_a_derived_class_keeps_the_places_of_its_base() -> None:
    base = slots_of(BASE, "Base")
    assert base == {"~": 0, "built": 2, "count": 3}
    assert slots_of(DERIVED, "Derived", base) == {**base, "more": 4, "last": 5}


def test_what_is_not_understood_is_said() -> None:
    with pytest.raises(ValueError, match="there is no Other"):
        slots_of(BASE, "Other")
    with pytest.raises(ValueError, match="overrides count, which its base does not have"):
        slots_of(DERIVED, "Derived", {"~": 0})
    with pytest.raises(ValueError, match="Base has no end"):
        slots_of(BASE[: BASE.rindex("}")], "Base")


def test_builds_with_which_it_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not with 2.12.1" in str(unfit("2.12.1+cpu", for_gpu=False))
    if platform.system() == "Linux":
        assert unfit("2.13.0+cpu", for_gpu=False) is None
        assert "built for a GPU" in str(unfit("2.13.0+cu130", for_gpu=True))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "not for darwin" in str(unfit("2.13.0", for_gpu=False))


@pytest.mark.torch
def test_the_header_of_the_installed_torch_is_understood() -> None:
    torch = pytest.importorskip("torch")
    folder = Path(torch.__file__).parent / "include" / "ATen" / "detail"
    if not folder.is_dir():
        pytest.skip("this torch has no headers")
    base = slots_of((folder / "AcceleratorHooksInterface.h").read_text(), "AcceleratorHooksInterface")
    assert base["~"] == 0
    assert base["isBuilt"] == 2
    found = slots_of((folder / "CUDAHooksInterface.h").read_text(), "CUDAHooksInterface", base)
    assert {name: found[name] for name in base} == base
    assert sorted(found.values()) == [place for place in range(max(found.values()) + 1) if place != 1]
    assert found["hasCUDA"] == max(base.values()) + 1
