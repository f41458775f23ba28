"""Twelve kinds of input, as users have them: recordings of every source, what never ran, a comparison, a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import CORPUS, REPOSITORY, corpus_files
from tests.kept_runs import put_run

FIXTURES = REPOSITORY / "fixtures"
RANKS = "torchrec__sst_sleep*"
"""Four ranks of one job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """``paths`` makes what is opened, in an empty folder; ``start``: the address, with the keys of what was opened."""

    name: str
    paths: Callable[[Path], tuple[Path, ...]]
    everyday: bool = False
    corpus: bool = True
    start: str = "overview?run={0}"


def _file(*parts: str) -> Callable[[Path], tuple[Path, ...]]:
    return lambda home: (CORPUS.joinpath(*parts),)


def _fixture(*names: str) -> Callable[[Path], tuple[Path, ...]]:
    return lambda home: tuple(FIXTURES / name for name in names)


def _ranks(home: Path) -> tuple[Path, ...]:
    for file in corpus_files("kineto", RANKS):
        (home / file.name).symlink_to(file)
    return (home,)


def _failed(home: Path) -> tuple[Path, ...]:
    """A run whose program failed, in a folder with a run of the same program."""
    put_run(home, 0)
    put_run(home, 1, exit_code=1, notes=["RuntimeError: loss is NaN"])
    return (home,)


KINDS = (
    Kind(name="pytorch-cpu", paths=_fixture("cpu-attention-naive"), everyday=True, corpus=False),
    Kind(name="pytorch-gpu", paths=_file("kineto", "TraceLens__h100_bert-small.json.gz")),
    Kind(name="jax-cpu", paths=_file("aot", "attn_naive.xplane.pb.gz")),
    Kind(name="jax-gpu", paths=_file("xplane", "TraceLens__mi300_jax_conv_08.xplane.pb.gz")),
    Kind(name="jax-tpu", paths=_file("xplane", "xprof__tpu_inference_2.xplane.pb.gz")),
    Kind(name="nsys", paths=_file("nsys_sqlite", "nsys-ai__h100_2gpu_1s.sqlite.gz")),
    Kind(name="snapshot", paths=_file("torch_mem", "assignment2-systems__medium512_infer.pickle.gz")),
    Kind(name="program", paths=_fixture("programs-h100/transformer"), corpus=False),
    Kind(name="plan", paths=_fixture("plans-h100/attention-naive"), corpus=False),
    Kind(name="ranks", paths=_ranks),
    Kind(
        name="comparison",
        paths=_fixture("cpu-attention-sdpa", "cpu-attention-sdpa-item"),
        corpus=False,
        start="compare?base={0}&head={1}",
    ),
    Kind(name="failed", paths=_failed, corpus=False),
)
