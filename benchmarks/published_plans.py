"""Published training runs against `perfscope plan`: their step time, their memory, and whether a mesh is surely better.

Prints the table of docs/plan.md::

    python -m benchmarks.published_plans            # all, minutes
    python -m benchmarks.published_plans llama      # rows whose name contains a word

The measured step follows from the published share of the peak (MFU) or tokens per second. ``better``: candidates of the
whole space (meshes, micro-batches, policies, 1F1B and interleaved schedules) that are faster than the published one
under every combination of the assumptions and need no more memory; none puts it on the front.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import parse_target, peak_flops
from perfscope.plugins.plan.assumptions import scenarios
from perfscope.plugins.plan.candidate import Candidate, Mesh
from perfscope.plugins.plan.decoder import Decoder
from perfscope.plugins.plan.evaluate import NS, Evaluated, Evaluator, Problem
from perfscope.plugins.plan.fabric import Fabric
from perfscope.plugins.plan.memory import least_state
from perfscope.plugins.plan.search import Places, Space, better, candidates

MEGATRON = "Narayanan et al. 2021 (arXiv 2104.04473), abstract; Megatron-LM, examples/sc21/run_table_1.sh"
NEMO = "NVIDIA/NeMo, docs/source/performance/performance_summary.md (24.07)"
BRIDGE = "NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md (25.11)"
MPT = "mosaicml/llm-foundry, scripts/train/benchmarking/README.md"
LLAMA = "Llama Team 2024 (arXiv 2407.21783), table 4"
TITAN_A100 = "torchtitan, docs/performance.md (64 A100)"
TITAN_H100 = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 1"
MAXTEXT = "MaxText, README (v5e-256) and configs/v5e/{}b.sh"

SPACE = Space(schedules=("1f1b", "interleaved"))


class Published(Struct, frozen=True, kw_only=True):
    """One published run."""

    name: str
    source: str
    model: Decoder
    target: str
    memory: str | None = None
    batch: int
    sequence: int
    candidate: Candidate
    mfu: float | None = None
    tokens_per_s: float | None = None
    """Per device."""
    flops_per_s: float | None = None
    """FLOP/s of all devices together, with recomputation (equation 3 of Narayanan et al. 2021)."""
    note: str = ""


def _gpt(name: str, layers: int, hidden: int, heads: int) -> Decoder:
    return Decoder(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads, ffn=4 * hidden,
        vocab=51200, gated=False, tied=True,
    )  # fmt: skip


def _llama(name: str, layers: int, hidden: int, heads: int, ffn: int) -> Decoder:
    return Decoder(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=8, head_dim=128, ffn=ffn, vocab=128256
    )


def _maxtext(name: str, layers: int, hidden: int, heads: int, ffn: int) -> Decoder:
    return Decoder(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=heads, head_dim=128, ffn=ffn, vocab=32000
    )


def _order(mesh: Mesh) -> tuple[str, ...]:
    return tuple(axis for axis in ("tensor", "context", "pipeline", "fsdp", "data", "expert") if mesh.sizes[axis] > 1)


def _run(
    mesh: Mesh, micro_batch: int, policy: str, *, schedule: str = "none", chunks: int = 1, regather: bool = True,
    offload: str = "none", precision: str = "bfloat16",
) -> Candidate:  # fmt: skip
    return Candidate(
        mesh=mesh, micro_batch=micro_batch, policy=policy, schedule=schedule, chunks=chunks,  # type: ignore[arg-type]
        regather=regather, offload=offload, precision=precision, order=_order(mesh),  # type: ignore[arg-type]
    )  # fmt: skip


def _mpt(name: str, layers: int, hidden: int, heads: int) -> Decoder:
    """Biases are left out, as in the configuration; 50,368 tokens make the published number of parameters."""
    return replace(_gpt(f"MPT {name}", layers, hidden, heads), vocab=50368)


_8B = _llama("Llama 3 8B", 32, 4096, 32, 14336)
_70B = _llama("Llama 3 70B", 80, 8192, 64, 28672)
_LLAMA2_70B = replace(_70B, name="Llama 2 70B", vocab=32000)
_405B = _llama("Llama 3 405B", 126, 16384, 128, 53248)

PUBLISHED: tuple[Published, ...] = (
    Published(name="Megatron 1T", source=MEGATRON, model=_gpt("1T", 128, 25600, 160), target="a100x3072", batch=3072,
              sequence=2048, flops_per_s=502e15,
              candidate=_run(Mesh(data=6, tensor=8, pipeline=64), 1, "full", schedule="1f1b")),
    Published(name="NeMo GPT-3 175B, 128 H100", source=NEMO, model=_gpt("175B", 96, 12288, 96), target="h100x128",
              batch=256, sequence=2048, tokens_per_s=726,
              candidate=_run(Mesh(fsdp=4, tensor=4, pipeline=8), 1, "none", schedule="interleaved", chunks=6,
                             regather=False, precision="fp8")),
    Published(name="NeMo Llama 2 70B, 64 H100", source=NEMO, model=_LLAMA2_70B, target="h100x64", batch=128,
              sequence=4096, tokens_per_s=1707,
              candidate=_run(Mesh(fsdp=4, tensor=4, pipeline=4), 1, "none", schedule="interleaved", chunks=20,
                             regather=False, precision="fp8")),
    Published(name="NeMo Llama 3 70B, 64 H100", source=NEMO, model=_70B, target="h100x64", batch=128, sequence=8192,
              tokens_per_s=1533,
              candidate=_run(Mesh(fsdp=2, context=2, tensor=4, pipeline=4), 1, "none", schedule="interleaved",
                             chunks=5, regather=False, precision="fp8")),
    Published(name="Megatron Bridge 70B, 64 H100", source=BRIDGE, model=_70B, target="h100x64", batch=128,
              sequence=8192, tokens_per_s=1602,
              candidate=_run(Mesh(fsdp=2, tensor=4, pipeline=8), 1, "none", schedule="interleaved", chunks=5,
                             regather=False, precision="fp8")),
    Published(name="Megatron Bridge 405B, 1,024 H100", source=BRIDGE, model=_405B, target="h100x1024", batch=512,
              sequence=8192, tokens_per_s=292,
              candidate=_run(Mesh(fsdp=8, context=2, tensor=8, pipeline=8), 1, "none", schedule="interleaved",
                             chunks=8, regather=False, precision="fp8")),
    Published(name="MPT 7B, 8 A100", source=MPT, model=_mpt("7B", 32, 4096, 32), target="a100x8", batch=96,
              sequence=2048, tokens_per_s=4641, candidate=_run(Mesh(fsdp=8), 6, "none")),
    Published(name="MPT 13B, 64 H100", source=MPT, model=_mpt("13B", 40, 5120, 40), target="h100x64", batch=128,
              sequence=2048, tokens_per_s=4800, candidate=_run(Mesh(fsdp=64), 2, "none")),
    Published(name="MPT 30B, 8 H100", source=MPT, model=_mpt("30B", 48, 7168, 56), target="h100x8", batch=168,
              sequence=8192, tokens_per_s=1384, candidate=_run(Mesh(fsdp=8), 1, "full")),
    Published(name="MPT 30B, 32 H100", source=MPT, model=_mpt("30B", 48, 7168, 56), target="h100x32", batch=1344,
              sequence=2048, tokens_per_s=2308, candidate=_run(Mesh(fsdp=32), 14, "full")),
    Published(name="MPT 70B, 64 H100", source=MPT, model=_mpt("70B", 80, 8192, 64), target="h100x64", batch=2048,
              sequence=2048, tokens_per_s=1039, candidate=_run(Mesh(fsdp=64), 8, "full")),
    Published(name="Llama 3 405B, 8,192", source=LLAMA, model=_405B, target="h100x8192", batch=2048, sequence=8192,
              mfu=0.43, candidate=_run(Mesh(fsdp=64, tensor=8, pipeline=16), 1, "none", schedule="interleaved",
                                       chunks=8, regather=False)),
    Published(name="Llama 3 405B, 16,384", source=LLAMA, model=_405B, target="h100x16384", batch=2048, sequence=8192,
              mfu=0.41, candidate=_run(Mesh(fsdp=128, tensor=8, pipeline=16), 1, "none", schedule="interleaved",
                                       chunks=8, regather=False)),
    Published(name="Llama 3 405B, 131k tokens", source=LLAMA, model=_405B, target="h100x16384", batch=128,
              sequence=131072, mfu=0.38,
              candidate=_run(Mesh(fsdp=8, context=16, tensor=8, pipeline=16), 1, "none", schedule="interleaved",
                             chunks=8, regather=False)),
    Published(name="torchtitan 8B, 64 A100", source=TITAN_A100, model=_8B, target="a100x64", batch=64, sequence=8192,
              mfu=0.582, candidate=_run(Mesh(fsdp=64), 1, "dots")),
    Published(name="torchtitan 70B, 64 A100", source=TITAN_A100, model=_70B, target="a100x64", batch=64, sequence=8192,
              mfu=0.517, candidate=_run(Mesh(fsdp=64), 1, "full")),
    Published(name="torchtitan 8B, 8 H100", source=TITAN_H100, model=_8B, target="h100x8", memory="95GiB", batch=16,
              sequence=8192, tokens_per_s=6667, candidate=_run(Mesh(fsdp=8), 2, "dots"),
              note="96 GB, 2.4 TB/s and 500 W there; the peaks here are those of 700 W"),
    Published(name="MaxText 16B", source=MAXTEXT.format(16), model=_maxtext("16B", 32, 4096, 64, 28672),
              target="v5e:16x16", batch=6 * 256, sequence=2048, mfu=0.611, candidate=_run(Mesh(fsdp=256), 6, "full")),
    Published(name="MaxText 32B", source=MAXTEXT.format(32), model=_maxtext("32B", 32, 8192, 64, 28672),
              target="v5e:16x16", batch=4 * 256, sequence=2048, mfu=0.6686, candidate=_run(Mesh(fsdp=256), 4, "full")),
    Published(name="MaxText 64B", source=MAXTEXT.format(64), model=_maxtext("64B", 64, 8192, 64, 28672),
              target="v5e:16x16", batch=2 * 256, sequence=2048, mfu=0.599, candidate=_run(Mesh(fsdp=256), 2, "full")),
    Published(name="MaxText 128B", source=MAXTEXT.format(128), model=_maxtext("128B", 64, 8192, 128, 57344),
              target="v5e:16x16", batch=256, sequence=2048, mfu=0.5606,
              candidate=_run(Mesh(fsdp=16, tensor=16), 16, "dots", offload="activations")),
)  # fmt: skip
"""Sequences are of 8,192 tokens and vocabularies those of the models where a source does not repeat them. Schedules of
Llama 3 are variants of interleaved with one layer per chunk. NeMo and Megatron Bridge divide the optimizer's state
among the data-parallel ranks (fsdp, gathered per step); products are in fp8.
"""


class Result(Struct, frozen=True, kw_only=True):
    """A published run in the model."""

    published: Published
    measured_ns: float
    item: Evaluated
    memory_bytes: int
    better: tuple[Evaluated, ...]

    @property
    def inside(self) -> bool:
        """Whether the measured step lies in the modelled range."""
        return self.item.low <= self.measured_ns <= self.item.high

    @property
    def fits(self) -> bool:
        """Whether its memory may fit."""
        return self.item.memory.total.low <= self.memory_bytes


def problem_of(published: Published) -> Problem:
    """The problem of a published run."""
    return Problem(
        model=published.model, target=parse_target(published.target, published.memory), global_batch=published.batch,
        sequence=published.sequence, scenarios=scenarios(), fabric=Fabric(),
    )  # fmt: skip


def measured_ns(published: Published, problem: Problem) -> float:
    """Step time of the publication."""
    if published.tokens_per_s is not None:
        return problem.tokens / (published.tokens_per_s * problem.target.count) * NS
    if published.flops_per_s is not None:
        model, length = problem.model, problem.sequence
        terms = 1 + length / (6 * model.hidden) + model.vocab / (16 * model.layers * model.hidden)
        return 96 * problem.tokens * model.layers * model.hidden**2 * terms / published.flops_per_s * NS
    peak = peak_flops(problem.target.device, "bfloat16")
    assert peak is not None
    assert published.mfu is not None
    flops = problem.tokens * problem.model.model_flops(problem.sequence) / problem.target.count
    return flops / (peak * published.mfu) * NS


def evaluate(published: Published, *, rivals: bool = True) -> Result:
    """Evaluate a run, and find candidates that are surely better."""
    problem = problem_of(published)
    evaluator = Evaluator(problem)
    layers = evaluator.layers(published.candidate)
    assert layers is not None
    item = evaluator.evaluate(published.candidate, layers, evaluator.memory(published.candidate, layers))
    memory = problem.target.memory_bytes or 0
    found = tuple(_better(problem, evaluator, item, memory)) if rivals else ()
    return Result(published=published, measured_ns=measured_ns(published, problem), item=item, memory_bytes=memory,
                  better=tuple(sorted(found, key=lambda one: one.middle)))  # fmt: skip


def _better(problem: Problem, evaluator: Evaluator, item: Evaluated, memory: int) -> Iterator[Evaluated]:
    places = Places(problem, SPACE)
    for candidate in candidates(problem, SPACE):
        if least_state(problem.model, candidate) > min(memory, item.needs):
            continue
        layers = evaluator.layers(candidate)
        if layers is None:
            continue
        needed = evaluator.memory(candidate, layers)
        if needed.total.high > item.needs or needed.total.low > memory:
            continue
        if not np.all(evaluator.least_times(candidate, layers) < item.times):
            continue
        other = evaluator.evaluate(places.best(evaluator, candidate, layers), layers, needed)
        if better(other, item):
            yield other


def row(result: Result) -> str:
    """A row of the table in docs/plan.md."""
    item, memory = result.item, result.item.memory.total
    times = " to ".join(f"{value / NS:.3g}" for value in (item.low, item.high))
    sizes = " to ".join(f"{value / 2**30:.0f}" for value in (memory.low, memory.high))
    front = "yes" if not result.better else f"no: {len(result.better)}, e.g. {result.better[0].candidate.words()}"
    cells = (
        result.published.name, result.published.candidate.words(), f"{result.measured_ns / NS:.3g}", times,
        "yes" if result.inside else "**no**", sizes, "yes" if result.fits else "**no**", front,
    )  # fmt: skip
    return "| " + " | ".join(cells) + " |"


HEAD = "| run | mesh and the rest | measured, s | modelled, s | inside | memory, GiB | may fit | on the front |"


def main() -> None:
    """Print the table."""
    words = [word.lower() for word in sys.argv[1:]]
    print(HEAD)
    print("|-|-|-:|-:|-|-:|-|-|")
    for published in PUBLISHED:
        if all(word in published.name.lower() for word in words):
            print(row(evaluate(published)), flush=True)


if __name__ == "__main__":
    main()
