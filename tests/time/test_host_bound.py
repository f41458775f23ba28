from __future__ import annotations

from perfscope.analyzers.engine import judge
from perfscope.analyzers.registry import load_rule
from perfscope.model.trace import CallKind
from tests.build import EVERYTHING, TraceBuilder

RULE = load_rule("host_bound")


def _loop(work_us: float, *, name: str = "train.py(12): tokenize", device_us: float = 20_000) -> TraceBuilder:
    """A step whose host works for ``work_us`` before it launches what the device then does."""
    b = TraceBuilder()
    b.python("train.py(30): main", 0, work_us + device_us)
    b.step(1, 0, work_us + device_us)
    b.python(name, 0, work_us)
    b.launched("gemm", work_us, work_us + 5, work_us + device_us, correlation=1)
    return b


def test_the_function_that_keeps_the_device_idle_is_named_with_its_line() -> None:
    (finding,) = judge(RULE, _loop(10_000).build()).findings
    assert (finding.subject, finding.cost_ns, finding.cost_ns_per_step) == ("host work", 10_000_000, 10_000_000)
    assert (finding.where.file, finding.where.line) == ("train.py", 12)
    assert finding.evidence[0]["host_was_in"] == "train.py(12): tokenize"
    assert (finding.severity, finding.basis) == ("high", "measured")


def test_kinds_of_work_are_told_apart() -> None:
    for name, subject in {
        "<built-in function sleep>": "sleeping",
        "$threading.py:323 wait": "sleeping",
        "Python GC": "garbage collection",
        "torch/serialization.py(900): save": "saving and logging",
        "logging/__init__.py(1500): info": "saving and logging",
    }.items():
        (finding,) = judge(RULE, _loop(10_000, name=name).build()).findings
        assert (finding.subject, finding.cost_ns) == (subject, 10_000_000), name


def test_a_function_of_jax_that_waits_for_the_device_is_no_host_work() -> None:
    assert judge(RULE, _loop(10_000, name="$api.py:3165 try_to_block").build()).status == "clean"


def test_the_threshold_is_a_twentieth_of_the_step() -> None:
    assert judge(RULE, _loop(5_000, device_us=95_000).build()).status == "flagged"
    assert judge(RULE, _loop(4_990, device_us=95_010).build()).status == "clean"


def test_work_beside_a_busy_device_costs_nothing() -> None:
    b = TraceBuilder()
    b.step(1, 0, 30_000)
    b.launched("gemm", 0, 5, 30_000, correlation=1)
    b.python("train.py(12): tokenize", 10, 29_000)
    assert judge(RULE, b.build()).status == "clean"


def test_the_price_of_launching_is_not_the_hosts_work() -> None:
    b = TraceBuilder()
    b.step(1, 0, 10_000)
    for number in range(10):
        b.launched("k", 1_000 * number + 400, 1_000 * number + 405, 1_000 * number + 1_000, correlation=number + 1)
    assert judge(RULE, b.build()).status == "clean"


def test_of_a_wait_only_what_goes_beyond_it_counts() -> None:
    b = TraceBuilder()
    b.step(1, 0, 40_000)
    b.launched("a", 0, 5, 10_000, correlation=1)
    b.call("cudaStreamSynchronize", 100, 10_001, kind=CallKind.SYNC)
    b.launched("b", 30_000, 30_005, 40_000, correlation=2)
    (finding,) = judge(RULE, b.build()).findings
    assert finding.cost_ns == 20_000_000 - 9_900_000


def test_without_an_accelerator_python_outside_every_op_is_judged() -> None:
    b = TraceBuilder()
    b.step(1, 0, 20_000)
    b.op("aten::mm", 0, 3_000)
    (finding,) = judge(RULE, b.build()).findings
    assert finding.cost_ns == 17_000_000
    assert (finding.advice, finding.about) == ("", "program"), "nothing is known that could be changed"
    assert "stacks" in finding.record


def test_without_any_work_it_abstains() -> None:
    assert judge(RULE, TraceBuilder(recorded=EVERYTHING - {"device_work"}).build()).status == "abstained"


def test_without_an_accelerator_it_must_be_in_every_step() -> None:
    for other, status in ((3_000, "flagged"), (0, "clean")):
        b = TraceBuilder()
        for number, work in enumerate((3_000, other)):
            begin = 20_000 * number
            b.step(number, begin, begin + 20_000)
            b.op("aten::mm", begin + work, begin + 20_000)
        assert judge(RULE, b.build()).status == status


def _compiled_loop(stack: str) -> TraceBuilder:
    """Three steps of a JAX program on a CPU, most of them outside its instructions, and samples of later steps."""
    b = TraceBuilder()
    for number in range(3):
        begin = 10_000 * number
        b.step(number, begin, begin + 10_000)
        b.op("PjitFunction(train_step)", begin, begin + 100)
        b.row("hlo_ops", name=b.code("dot.1"), module=b.code("jit_train_step"), start_ns=1_000 * (begin + 9_000),
              end_ns=1_000 * (begin + 10_000), encloses=False, run_id=number)  # fmt: skip
    for number in range(20):
        b.sample(stack, 50_000 + 1_000 * number, step=10 + number)
    return b


def test_calls_of_compiled_functions_are_named_at_the_line_that_calls() -> None:
    for callee in ("train_step", "site-packages/jax/_src/pjit.py(263): cache_miss"):
        b = _compiled_loop(f"train.py(3): main > {callee}")
        (finding,) = judge(RULE, b.build()).findings
        assert finding.subject == "calls"
        assert (finding.where.file, finding.where.line) == ("train.py", 3)
        assert "jax.lax.scan" in finding.advice


def test_beside_compiled_functions_the_programs_own_work_is_named() -> None:
    (finding,) = judge(RULE, _compiled_loop("train.py(3): main > train.py(9): tokenize").build()).findings
    assert (finding.subject, finding.where.line) == ("host work", 9)
    (finding,) = judge(RULE, _compiled_loop("train.py(3): main > block_until_ready").build()).findings
    assert (finding.subject, finding.where.file) == ("host work", None), "waiting for the device is none of it"


def test_without_an_accelerator_a_cause_must_be_in_half_of_the_steps() -> None:
    for every, kinds in ((1, {"host work", "garbage collection"}), (3, {"host work"})):
        b = TraceBuilder()
        for number in range(6):
            begin = 20_000 * number
            b.step(number, begin, begin + 20_000)
            b.op("aten::mm", begin + 6_000, begin + 20_000)
            if number % every == 0:
                b.python("Python GC", begin, begin + 2_000)
        assert {finding.subject for finding in judge(RULE, b.build()).findings} == kinds


def test_below_a_line_that_starts_a_library_its_functions_are_told() -> None:
    fit = (
        "train.py(3): main > site-packages/keras/trainer.py(10): Trainer.fit > site-packages/keras/trainer.py(20): step"
    )
    b = TraceBuilder(recorded=EVERYTHING - {"device_work"})
    b.step(1, 0, 20_000)
    b.op("aten::mm", 0, 1_000)
    calls = {"optimizer.py(5): apply": 6, "metrics.py(7): update > site-packages/keras/metrics.py(9): mean": 4}
    stacks = [f"{fit} > site-packages/keras/{call}" for call, times in calls.items() for _ in range(times)]
    for number, stack in enumerate([*stacks, "train.py(3): main > site-packages/keras/logs.py(1): write"]):
        b.sample(stack, 30_000 + 1_000 * number, step=2)
    (finding,) = judge(RULE, b.build()).findings
    assert finding.title == "the host is in a library's own loop: mostly in keras"
    assert (finding.advice, bool(finding.record)) == ("", True), "a trainer is no work of the program to move"
    assert (finding.where.file, finding.where.line) == ("train.py", 3)
    rows = [(row["host_was_in"], row["site"], row["pieces"]) for row in finding.evidence]
    assert rows == [
        ("apply", "site-packages/keras/optimizer.py:5", 6),
        ("update", "site-packages/keras/metrics.py:7", 4),
    ]
    assert finding.evidence[0]["idle_ns"] == round(19_000_000 * 6 / 11)


def _sampled_loop(lines: dict[int, int]) -> TraceBuilder:
    """A loop in ``train`` with its own lines (line -> samples) and the framework's work for the step."""
    loop = "train.py(30): train"
    stacks = {
        f"{loop} > torch/_tensor.py(1): backward > Variable.run_backward": 6,
        f"{loop} > torch/optim/sgd.py(1): step > torch._foreach_add_": 3,
        **{f"train.py({line}): train > sorted": times for line, times in lines.items()},
    }
    b = TraceBuilder(recorded=EVERYTHING - {"device_work"})
    b.step(1, 0, 20_000)
    b.op("aten::mm", 0, 1_000)
    for number, stack in enumerate(stack for stack, times in stacks.items() for _ in range(times)):
        b.sample(stack, 30_000 + 1_000 * number, step=2)
    return b


def test_of_a_loop_the_line_is_named_and_never_the_function() -> None:
    (finding,) = judge(RULE, _sampled_loop({31: 80, 37: 20}).build()).findings
    assert finding.where.line == 31
    assert "`train`" not in finding.advice, "the function that holds the loop"
    assert finding.advice.startswith("Move what `sorted` does at train.py:31 out of the step:")


def test_of_a_loop_without_a_line_with_most_of_the_time_the_lines_are_listed_and_no_fix_is_given() -> None:
    (finding,) = judge(RULE, _sampled_loop({31: 40, 37: 35, 41: 25}).build()).findings
    assert finding.advice == ""
    assert "train.py:31 (" in finding.detail
    assert "train.py:37 (" in finding.detail


def test_the_frameworks_own_work_in_a_step_is_not_told_to_move() -> None:
    (finding,) = judge(RULE, _sampled_loop({31: 2}).build()).findings
    assert "out of the step" not in finding.advice
    assert finding.where.line == 30


def test_a_compiled_model_is_not_told_to_be_compiled() -> None:
    for op, compiled in (("aten::mm", False), ("Torch-Compiled Region: 0/0", True)):
        b = TraceBuilder(recorded=EVERYTHING - {"device_work"})
        b.step(1, 0, 20_000)
        b.op(op, 0, 1_000)
        for number in range(20):
            b.sample("train.py(30): train > torch/nn/modules/module.py(1): _call_impl", 30_000 + 1_000 * number, step=2)
        (finding,) = judge(RULE, b.build()).findings
        assert ("`torch.compile(model)`" in finding.advice) is not compiled
        assert ("`torch.compile` for the code that still runs eagerly" in finding.advice) is compiled


def test_a_range_that_the_program_annotates_is_not_told_to_move() -> None:
    b = TraceBuilder()
    b.step(1, 0, 30_000)
    b.annotation("Forward 1", 0, 10_000)
    b.launched("gemm", 10_000, 10_005, 30_000, correlation=1)
    (finding,) = judge(RULE, b.build()).findings
    assert "Forward 1" in finding.title
    assert (finding.advice, bool(finding.record)) == ("", True)


def test_one_thing_that_the_account_has_under_two_causes_is_one_finding() -> None:
    b = TraceBuilder(recorded=EVERYTHING - {"device_work"})
    b.step(1, 0, 20_000)
    b.op("aten::mm", 0, 2_000)
    b.python("train.py(9): h", 3_000, 8_000)
    b.python("<built-in function sleep>", 3_000, 8_000)
    for number in range(20):
        b.sample("train.py(3): main > train.py(9): h > time.sleep", 30_000 + 1_000 * number, cpu=0, step=2)
    (finding,) = judge(RULE, b.build()).findings
    assert (finding.subject, set(finding.covers_ns)) == ("sleeping", {"sleeping", "other_host"})
    assert "sleep" in finding.advice


def test_a_function_known_from_a_sample_and_from_the_detail_pass_is_one_finding() -> None:
    recorded = EVERYTHING - {"device_work"}
    b, detail = TraceBuilder(recorded=recorded - {"python_stack"}), TraceBuilder(recorded=recorded)
    for builder in (b, detail):
        builder.step(1, 0, 20_000)
        builder.op("aten::mm", 8_000, 9_000)
        builder.op("aten::mm", 18_000, 20_000)
    library = "site-packages/torch/serialization.py(9): save"
    b.sample(f"train.py(30): main > train.py(9): main.<locals>.keep > {library}", 4_000)
    for start, end in ((0, 8_000), (9_000, 18_000)):
        detail.python("train.py(8): keep", start, end)
        detail.python(library, start + 1, end - 1)
    b.detail = detail.build()
    (finding,) = judge(RULE, b.build()).findings
    assert (finding.where.line, set(finding.covers_ns)) == (9, {"saving", "other_host"})


def test_a_wait_without_a_line_of_the_program_has_no_fix() -> None:
    (finding,) = judge(RULE, _loop(10_000, name="$threading.py:323 wait").build()).findings
    assert finding.title == "the host waits for another thread: mostly in wait" or finding.where.file == "train.py"
    assert not finding.advice or finding.where.file == "train.py"


def test_the_profilers_own_end_is_a_fault_of_the_recording() -> None:
    (finding,) = judge(RULE, _loop(10_000, name="$profiler.py:213 stop_trace").build()).findings
    assert (finding.about, finding.cost_ns, finding.advice) == ("recording", None, "")


def test_the_cost_is_that_of_the_usual_steps() -> None:
    """One of three traced steps is delayed by something that is rare in the run."""
    b = TraceBuilder(recorded=EVERYTHING - {"device_work"}, step_times_us=(10_000,) * 20)
    at = 0.0
    for number, length in enumerate((300_000, 10_000, 10_000)):
        b.step(number, at, at + length)
        b.op("aten::mm", at, at + 7_000)
        at += length
    (finding,) = judge(RULE, b.build()).findings
    assert finding.cost_ns_per_step == 3_000_000
