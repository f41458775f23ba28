"""Which frame is the user's."""

from __future__ import annotations

import pytest

from perfscope.analyzers.hlo.source_frames import FrameTable, is_library


@pytest.mark.parametrize(
    "path",
    [
        "/opt/venv/lib/python3.12/site-packages/jax/_src/pjit.py",
        "/usr/lib/python3/dist-packages/numpy/core.py",
        "/usr/lib/python3.11/contextlib.py",
        "/opt/jax/jax/_src/api.py",
        "/opt/flax/flax/linen/module.py",
        "/opt/flax/flax/nnx/nn/linear.py",
        "/opt/optax/optax/_src/base.py",
        "<frozen runpy>",
        "C:\\env\\Lib\\site-packages\\jax\\_src\\api.py",
    ],
)
def test_libraries(path: str) -> None:
    assert is_library(path)


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/train.py",
        "/home/me/jax/train.py",
        "/home/me/projects/flax/model.py",
        "train.py",
        "/data/torch/nn.py.txt",
    ],
)
def test_the_users_own_files(path: str) -> None:
    assert not is_library(path)


def test_the_innermost_user_frame_wins_and_a_circle_ends() -> None:
    table = FrameTable(
        files={1: "train.py", 2: "/x/site-packages/a.py"},
        locations={1: (1, 5), 2: (2, 6), 3: (1, 7), 4: (9, 1)},
        frames={1: (1, 0), 2: (3, 1), 3: (2, 2), 4: (2, 5), 5: (2, 4), 6: (4, 1), 7: (2, 0)},
    )
    assert table.user_line(3) == ("train.py", 7)
    assert table.user_line(6) == ("train.py", 5)  # its own location names no file
    assert table.user_line(4) == ("/x/site-packages/a.py", 6)  # a circle of library frames
    assert table.user_line(7) == ("/x/site-packages/a.py", 6)  # nothing better is known
    assert table.user_line(0) is None
