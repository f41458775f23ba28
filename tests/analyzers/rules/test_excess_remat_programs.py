"""excess_remat on compiled XLA programs: jax.checkpoint's recomputation, XLA's own, dominated policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.engine import analyze, judge
from perfscope.analyzers.facts.hlo_liveness import peak_bytes
from perfscope.analyzers.facts.hlo_program import costs
from perfscope.analyzers.facts.hlo_remat import cloned_instructions, recomputed_products
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.hlo.module import BufferAssignment, HloModule
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import RECORDED
from tests.build import EVERYTHING, TraceBuilder
from tests.hlo_build import corpus_module, hlo_module, hlo_trace

RULE = load_rule("excess_remat")

PLAIN, AGAIN = "jit(step)/jvp()/dot_general", "jit(step)/transpose(jvp())/checkpoint/rematted_computation/dot_general"


def product(name: str, path: str, *, size: int = 1024, scheduled_as: str = "") -> str:
    """bf16[size,size] = bf16[size,1024] x bf16[1024,size]."""
    clone = f' scheduling_name="{scheduled_as}"' if scheduled_as else ""
    meta = f'metadata={{op_name="{path}" source_file="/home/me/mlp.py" source_line=6{clone}}}'
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    return f"  %{name} = bf16[{size},{size}]{{1,0}} dot(%a{size}, %b{size}), {dims}, {meta}\n"


def program(*lines: str, name: str = "jit_step", keep: int = 0, scheduled: bool = True) -> HloModule:
    """Products in a row; ``keep``: elements of float32 that stay alive to the end."""
    sizes = (1024, 64)
    arguments = "".join(
        f"  %a{n} = bf16[{n},1024]{{1,0}} parameter({2 * i})\n  %b{n} = bf16[1024,{n}]{{1,0}} parameter({2 * i + 1})\n"
        for i, n in enumerate(sizes)
    )
    held = f'  %kept = f32[{keep}]{{0}} custom-call(), custom_call_target="make"\n' if keep else ""
    used = '  %use = f32[1]{0} custom-call(%kept), custom_call_target="use"\n' if keep else ""
    root = "  ROOT %out = bf16[1024,1024]{1,0} negate(%first)\n"
    return hlo_module(f"ENTRY %main () -> bf16[] {{\n{arguments}{held}{''.join(lines)}{used}{root}}}", name,
                      scheduled=scheduled)  # fmt: skip


def _judge(*modules: HloModule) -> Outcome:
    return judge(RULE, hlo_trace(*modules))


FIRST = product("first", PLAIN)


def test_a_product_that_runs_again_is_flagged_with_its_line_and_what_keeping_it_takes():
    outcome = _judge(program(FIRST, product("again", AGAIN)))
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis) == ("flagged", "recomputed forward", "structural")
    assert (finding.severity, finding.cost_ns, finding.where.label()) == ("medium", None, "/home/me/mlp.py:6")
    row = finding.evidence[0]
    assert (row["product"], row["times"], row["gflops"]) == ("again", 1, 2 * 1024**3 / 1e9)
    assert row["kept_bytes"] == 2 * 1024 * 1024
    assert "dots_with_no_batch_dims_saveable" in finding.advice


def test_the_threshold_is_a_twentieth_of_the_arithmetic():
    few = [product(f"p{index}", PLAIN) for index in range(17)]
    assert _judge(program(FIRST, product("again", AGAIN), *few)).status == "flagged"
    assert _judge(program(FIRST, product("again", AGAIN), *few, product("more", PLAIN))).status == "clean"


def test_a_product_cheaper_than_its_result_through_memory_is_clean():
    short = product("again", AGAIN).replace("1024", "64").replace("bf16[64,64]", "bf16[1024,1024]").replace(
        "%a64, %b64", "%c, %d")  # fmt: skip
    arguments = "  %c = bf16[1024,64]{1,0} parameter(4)\n  %d = bf16[64,1024]{1,0} parameter(5)\n"
    module = program(FIRST, arguments + short)
    (again,) = hlo_trace(module).fact(recomputed_products)
    assert again.flops == 2 * 1024 * 64 * 1024
    assert again.is_cheap
    assert _judge(module).status == "clean"


@pytest.mark.parametrize(("batch", "status"), [("", "flagged"), (", lhs_batch_dims={0}, rhs_batch_dims={0}", "clean")])
def test_on_a_cpu_jaxs_own_policy_says_what_is_cheap(batch: str, status: str):
    again = product("again", AGAIN).replace("rhs_contracting_dims={0}", f"rhs_contracting_dims={{0}}{batch}")
    module = replace(program(FIRST, again), platform="cpu")
    assert _judge(module).status == status


def test_all_that_one_checkpoint_recomputes_is_one_finding():
    (finding,) = _judge(program(FIRST, product("x", AGAIN), product("y", AGAIN))).findings
    assert "2 matrix products" in finding.title
    other = product("z", AGAIN.replace("checkpoint", "mlp/checkpoint"))
    assert len(_judge(program(FIRST, product("x", AGAIN), other)).findings) == 2


def test_clones_are_told_by_the_name_they_had_and_the_first_is_left_out():
    module = program(
        product("first", PLAIN, scheduled_as="first"),
        product("x.remat2", PLAIN, scheduled_as="first"),
        product("y.remat", PLAIN, scheduled_as="y"),
    )
    (found,) = hlo_trace(module).fact(cloned_instructions)
    assert (found.original, [row.instruction.name for row in found.rows]) == ("first", ["x.remat2"])
    (finding,) = _judge(module).findings
    assert finding.subject == "rematerialized by XLA"
    assert "33.3%" in finding.title


def test_of_two_programs_of_a_function_the_dominated_one_is_named():
    wasteful = program(FIRST, product("again", AGAIN), keep=1_000_000)
    frugal = program(FIRST, product("other", PLAIN), keep=1_000_000)
    dominated = [one for one in _judge(wasteful, frugal).findings if "dominated" in one.subject]
    (finding,) = dominated
    assert [(row["program"], row["beaten_by"]) for row in finding.evidence] == [("jit_step #1", "jit_step #2"),
                                                                              ("jit_step #2", None)]  # fmt: skip
    assert finding.title.startswith("jit_step #1 recomputes 50.0% or less of its arithmetic and needs 12.")
    assert (finding.basis, finding.where.module) == ("modelled", "jit_step")


@pytest.mark.parametrize(
    "other",
    [
        program(FIRST, product("other", PLAIN), keep=3_000_000),  # recomputes less but needs more memory
        program(FIRST, product("other", PLAIN), name="jit_other"),
        program(FIRST, product("other", PLAIN), "  %c = f32[8]{0} parameter(4)\n"),  # other arguments
        replace(program(FIRST, product("other", PLAIN)), platform="gpu"),
        replace(
            program(FIRST, product("other", PLAIN)), buffer_assignment=BufferAssignment(buffers={}, allocations=())
        ),
    ],
    ids=["more memory", "another function", "other arguments", "another device", "memory known in another way"],
)
def test_what_is_no_better_or_no_match_dominates_nothing(other: HloModule):
    wasteful = program(FIRST, product("again", AGAIN))
    assert [one.subject for one in _judge(wasteful, other).findings] == ["recomputed forward"]


def test_what_cannot_be_judged_abstains():
    early = _judge(program(FIRST, product("again", AGAIN), scheduled=False))
    assert early.status == "abstained"
    assert "may still remove recomputation" in (early.reason or "")
    nameless = program(FIRST.replace(PLAIN, ""))
    assert "op_name" in (_judge(nameless).reason or "")
    neither = judge(RULE, TraceBuilder(recorded=EVERYTHING - {"hlo", "autograd"}).build())
    assert neither.reason == f"not recorded: {RECORDED['autograd']}"


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("policy", "scan", "unrolled"), [("none", 0.0, 0.0), ("full", 0.143, 0.149), ("dots", 0.001, 0.001),
                                     ("names", 0.143, 0.148)]
)  # fmt: skip
def test_recompute_share_of_real_policies(corpus: Path, policy: str, scan: float, unrolled: float):
    for form, share in (("scan", scan), ("unroll", unrolled)):
        module = corpus_module(corpus / "aot" / f"gpu_ckpt_{policy}_{form}.hlo.txt.gz")
        (cost,) = hlo_trace(module).fact(costs)
        assert cost.recompute_share() == pytest.approx(share, abs=6e-4)
        assert _judge(module).status == ("flagged" if share > 0.1 else "clean")


def test_programs_of_two_recordings_are_compared():
    wasteful, frugal = (
        hlo_trace(replace(program(FIRST, product(name, path), keep=1_000_000), source=f"{run}/hlo/step.hlo.pb"))
        for name, path, run in (("again", AGAIN, "run1"), ("other", PLAIN, "run2"))
    )
    (outcome,) = analyze([wasteful, frugal], rules=["excess_remat"]).outcomes
    (finding,) = (one for one in outcome.findings if "dominated" in one.subject)
    assert "run1/…/step recomputes 50.0%" in finding.title
    assert "; run2/…/step, a program" in finding.title


@pytest.mark.corpus
@pytest.mark.parametrize("form", ["scan", "unroll"])
def test_saving_names_is_dominated_by_saving_products(corpus: Path, form: str):
    modules = [corpus_module(corpus / "aot" / f"gpu_ckpt_{policy}_{form}.hlo.txt.gz")
               for policy in ("none", "full", "dots", "names")]  # fmt: skip
    (finding,) = (one for one in _judge(*modules).findings if "dominated" in one.subject)
    better = {str(row["program"]).split("_")[2]: row["beaten_by"] for row in finding.evidence}
    assert better == {"none": None, "full": None, "dots": None, "names": f"gpu_ckpt_dots_{form}"}
    shares = {str(row["program"]).split("_")[2]: row["recompute_share"] for row in finding.evidence}
    expected = {"none": 0.0, "full": 0.143, "dots": 0.001, "names": 0.143}
    if form == "unroll":
        expected |= {"full": 0.149, "names": 0.148}
    assert shares == pytest.approx(expected, abs=6e-4)


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("program_name", "temporary"),
    [
        ("ckpt_none_scan", 465.6e6), ("ckpt_full_scan", 71.3e6), ("ckpt_dots_scan", 151.0e6),
        ("ckpt_names_scan", 151.0e6), ("ckpt_none_unroll", 192.9e6), ("ckpt_full_unroll", 88.1e6),
        ("ckpt_dots_unroll", 125.8e6), ("ckpt_names_unroll", 125.8e6), ("remat_h100", 199e6),
        ("remat_h100_small", 241e6),
    ],
)  # fmt: skip
def test_modelled_peaks_are_within_15_percent_of_xlas(corpus: Path, program_name: str, temporary: float):
    """``temporary``: what XLA itself said when it compiled them, beside arguments and results."""
    module = corpus_module(corpus / "aot" / f"gpu_{program_name}.hlo.txt.gz")
    entry = module.entry_computation()
    arguments = sum(one.shape.bytes for one in entry.instructions if one.opcode == "parameter")
    assert peak_bytes(module) == pytest.approx(arguments + entry.root.shape.bytes + temporary, rel=0.15)


@pytest.mark.corpus
def test_clones_of_a_real_program_are_the_difference_of_the_two(corpus: Path):
    plain, small = (
        hlo_trace(corpus_module(corpus / "aot" / f"gpu_remat_h100{suffix}.hlo.txt.gz")) for suffix in ("", "_small")
    )
    difference = small.fact(costs)[0].total.flops - plain.fact(costs)[0].total.flops
    assert sum(one.flops for one in small.fact(cloned_instructions)) == pytest.approx(difference, rel=1e-5)
    assert plain.fact(cloned_instructions) == ()
    (finding,) = judge(RULE, small).findings
    assert (finding.subject, "14.4%" in finding.title) == ("rematerialized by XLA", True)


@pytest.mark.corpus
def test_what_blocked_attention_recomputes_is_cheap(corpus: Path):
    module = corpus_module(corpus / "aot" / "gpu_attn_blocked.hlo.txt.gz")
    assert [one.is_cheap for one in hlo_trace(module).fact(recomputed_products)] == [True]
    assert _judge(module).status == "clean"
