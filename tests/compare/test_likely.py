"""The step time from one launch per side: likely worse, likely better, or not judged."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from perfscope.analyzers.compare.runs.cautions import compare_loaded
from perfscope.analyzers.compare.runs.comparison import Comparison, compare
from perfscope.analyzers.compare.runs.likely import carried_by, likely_change
from perfscope.analyzers.readers.load import Loaded, ReadTrace
from perfscope.dashboards.report.compare.json import document
from perfscope.dashboards.report.compare.render import render_html, render_markdown, render_text
from perfscope.dashboards.report.compare.words import headline
from perfscope.dashboards.web.views.compare import view_of
from perfscope.model.documents.comparison import Account, Amount, of
from perfscope.model.errors import UsageError
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.compare.runs import gpu_run


def host_steps(
    *, python_ms: float = 1, op_ms: float = 50, unprofiled_ms: float | None = None, ops: int = 1, sleeps_ms: float = 0
) -> Trace:
    """Six steps on the host, an op and Python each, and forty without a profiler of as long or ``unprofiled_ms``."""
    step_ms = python_ms + op_ms + sleeps_ms
    free = step_ms if unprofiled_ms is None else unprofiled_ms
    wobble = [1000 * free * (1 + 0.01 * (number % 5)) for number in range(40)]
    made = TraceBuilder(path="train.py.json", step_times_us=tuple(wobble))
    for number in range(6):
        start = number * 1000 * step_ms
        made.step(number, start, start + 1000 * step_ms)
        for index in range(ops):
            begin = start + index * 1000 * op_ms / ops
            made.op("aten::mm", begin, begin + 1000 * op_ms / ops - 1)
        made.python("train.py(18): tokenize", start + 1000 * op_ms, start + 1000 * (op_ms + python_ms))
        if sleeps_ms:
            made.python("<built-in function sleep>", start + 1000 * (op_ms + python_ms), start + 1000 * step_ms)
    return made.build()


def every_format(found: Comparison) -> dict[str, str]:
    """The comparison in each form, in one line."""
    held = of(document(found))
    forms = {
        "text": render_text(held, width=400),
        "markdown": render_markdown(held),
        "html": render_html(held),
        "json": held.summary,
        "dashboard": "".join(str(view_of(held)[part]) for part in ("verdict", "metrics", "causes", "account")),
    }
    return {name: " ".join(text.split()) for name, text in forms.items()}


def test_a_longer_step_is_a_likely_regression_with_what_it_is_made_of() -> None:
    found = compare([host_steps()], [host_steps(python_ms=32)])
    assert (found.headline, found.likely) == ("regression likely", "regression")
    assert found.step_time is not None
    assert found.gates(["regression"]) == ("step time: regression likely, +60.8% (one launch each)",)
    (first, *_) = found.carried
    assert first.cause == "other_host"
    assert first.delta_ns == pytest.approx(31_000_000, rel=0.01)
    for name, text in every_format(found).items():
        assert "no change" not in text.split("Metrics")[0], name
        assert "other host work" in text, name
        assert "perfscope compare commits" in text, name


def test_the_finding_that_carries_the_change_is_shown_first() -> None:
    found = compare([host_steps()], [host_steps(python_ms=32)])
    (first, *_) = found.findings
    assert (first.rule, first.change, first.carries, first.by_time, first.is_worse) == (
        "host_bound", "new", True, False, True,
    )  # fmt: skip
    text = render_text(of(document(found)), width=120)
    assert text.index("host_bound") < text.index("Where the step goes")
    assert found.gates(["finding:low"])


def test_a_shorter_step_is_a_likely_improvement_and_more_calls_are_a_note() -> None:
    found = compare([host_steps(python_ms=32)], [host_steps(ops=2)])
    assert (found.headline, found.likely) == ("improvement likely", "improvement")
    assert found.gates(["regression"]) == ()


def test_without_a_second_measurement_that_agrees_it_is_not_judged() -> None:
    found = compare([host_steps()], [host_steps(unprofiled_ms=70)])
    assert (found.headline, found.likely, found.gates(["regression"])) == ("not judged", None, ())
    assert headline(of(document(found))).startswith("not judged: step time 52.0 ms → 71.4 ms, +37.3% (one launch each)")


def test_below_a_tenth_it_is_not_judged() -> None:
    found = compare([host_steps()], [host_steps(python_ms=4)])
    assert (found.headline, found.likely, found.gates(["regression"])) == ("not judged", None, ())


def test_on_a_busy_machine_longer_ops_are_chance_and_longer_python_is_not() -> None:
    base = host_steps()
    assert compare([base], [host_steps(op_ms=80)]).headline == "regression likely"
    assert compare([base], [host_steps(op_ms=80)], busy=True).headline == "not judged"
    assert compare([base], [host_steps(python_ms=32)], busy=True).headline == "regression likely"


def test_traces_alone_name_the_command_that_settles_it() -> None:
    sides = [Loaded(results=(ReadTrace(trace=trace),)) for trace in (host_steps(), host_steps(python_ms=32))]
    assert compare_loaded(*sides).settle == "perfscope compare commits --base REF -- train.py"


def test_more_calls_of_a_faster_step_are_a_note_in_every_format() -> None:
    base, head = gpu_run(steps=8, slow_us=600), gpu_run(steps=8, extra=True)
    found = compare([base], [head])
    assert (found.headline, found.gates(["regression"])) == ("improvement likely", ())
    for name, text in every_format(found).items():
        assert "noted: kernels per step 4 → 5" in text, name


def test_other_frameworks_are_refused_with_what_can_be_compared() -> None:
    jax = msgspec.structs.replace(gpu_run(), recorded=gpu_run().recorded | {"hlo"})
    with pytest.raises(UsageError, match="compare step time, causes and memory") as refused:
        compare([gpu_run()], [jax])
    assert "\n" not in str(refused.value)
    assert "`perfscope analyze train.py.json`" in str(refused.value)
    assert "`perfscope parity" in str(refused.value)


def test_counts_of_another_vendor_are_notes_and_the_time_is_not_judged() -> None:
    base = gpu_run(device="NVIDIA H100 80GB HBM3", steps=8)
    head = gpu_run(device="AMD Instinct MI300X", steps=8, slow_us=600, fused=True)
    found = compare([base], [head])
    assert (found.headline, found.likely, found.gates(["regression"])) == ("not judged", None, ())
    (caution,) = found.cautions
    assert "their vendors differ" in caution
    assert "`perfscope analyze train.py.json`" in caution


def test_waiting_for_a_core_hides_no_work_of_the_programs_own() -> None:
    busy = Account(
        base_ns=395, head_ns=1254, on_host=True,
        causes={
            "compute": Amount(base_ns=69, head_ns=64), "other_host": Amount(base_ns=9, head_ns=110),
            "core_wait": Amount(base_ns=317, head_ns=1080),
        },
    )  # fmt: skip
    found = compare([host_steps()], [host_steps(op_ms=110)])
    assert found.step_time is not None
    step = replace(found.step_time, verdict="inconclusive")
    assert likely_change(step, found.time, (), busy, busy=True) == "regression"
    alike = {**busy.causes, "other_host": Amount(base_ns=9, head_ns=10)}
    assert likely_change(step, found.time, (), replace(busy, causes=alike), busy=True) is None
    (carried,) = carried_by((), busy, "regression")
    assert (carried.cause, carried.delta_ns) == ("other_host", 101)
