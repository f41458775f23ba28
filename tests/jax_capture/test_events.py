"""jax's explanations of tracing cache misses in its oldest and newest version, and their log."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.run.logs import read_events
from perfscope.profiler.jax import events as jax_events
from perfscope.profiler.jax.events import EventLog, explanation
from perfscope.profiler.jax.record_log import CallSites, RecordLog

NEW = """TRACING CACHE MISS at /home/x/train.py:10:22 (main.<locals>.<lambda>):
  for train defined at /home/x/model.py:8
  all previously seen cache keys differ. For the closest previous key:
  different input types:
  * at x, now f32[5,5] and before f32[4,4]"""
OLD = """TRACING CACHE MISS at /home/x/train.py:10:22 (<module>) costing 2.763 ms because:
  for train defined at /home/x/model.py:8
  all previously seen cache keys are different. Closest previous key:
  * key with different input types:
      types now: x: f32[5,5]
        * at x, now f32[5,5] and before f32[4,4]"""
FIRST = """TRACING CACHE MISS at /home/x/train.py:10:22 (<module>):
  never seen function:
    <lambda> id=139631391921056 defined at /home/x/train.py:11"""
AGAIN = f"""{FIRST}
  but seen another function defined on the same line; maybe the function is
  being re-defined repeatedly, preventing caching?"""


def said(text: str) -> dict[str, Any]:
    return explanation(text, lambda path: path.rpartition("/")[2])


@pytest.mark.parametrize("text", [NEW, OLD])
def test_a_retrace_has_its_lines_and_its_reason(text: str) -> None:
    found = said(text)
    reason = found.pop("reason")
    assert found == {
        "kind": "retrace", "file": "train.py", "line": 10,
        "function": "train", "defined_file": "model.py", "defined_line": 8,
    }  # fmt: skip
    assert reason.startswith(("different input types", "* key with different input types"))
    assert reason.endswith("at x, now f32[5,5] and before f32[4,4]")


def test_a_first_trace_is_none_and_a_function_made_anew_is_one() -> None:
    assert said(FIRST) == {
        "kind": "first_trace", "file": "train.py", "line": 10,
        "function": "<lambda>", "defined_file": "train.py", "defined_line": 11,
    }  # fmt: skip
    again = said(AGAIN)
    assert again["kind"] == "retrace"
    assert "re-defined repeatedly" in again["reason"]


def test_words_of_another_version_lose_nothing_but_their_parts() -> None:
    assert said("TRACING CACHE MISS, somehow\n  because of that") == {"kind": "retrace", "reason": "because of that"}
    assert said("TRACING CACHE MISS") == {"kind": "retrace", "reason": ""}
    assert len(said(NEW + "\n  * at y" * 10_000)["reason"]) == jax_events.MOST_REASON


def test_a_list_that_is_full_counts_the_rest(tmp_path: Path) -> None:
    lines = RecordLog("x/1", 2)
    for number in range(5):
        lines.add(number=number, absent=None)
    lines.save(tmp_path / "lines.jsonl", version="7")
    head, *records = map(json.loads, (tmp_path / "lines.jsonl").read_text().splitlines())
    assert head == {"schema": "x/1", "records": 2, "dropped": 3, "version": "7"}
    assert records == [{"number": 0}, {"number": 1}]
    (tmp_path / "lines.jsonl").unlink()
    lines.save(tmp_path / "lines.jsonl")
    assert not (tmp_path / "lines.jsonl").exists(), "nothing came since"


@pytest.mark.jax
def test_compilations_are_listened_to_and_the_log_stays_the_programs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import jax
    import jax.numpy as jnp

    log = EventLog(CallSites(Path(__file__).parent), lambda: 4)
    with caplog.at_level(logging.DEBUG):
        log.start()
        try:
            function = jax.jit(lambda x: jnp.sin(x) * 2)
            for size in (3, 3, 4):
                function(jnp.ones(size))
        finally:
            log.stop()
    assert not [record for record in caplog.records if "CACHE MISS" in record.getMessage()]
    (tmp_path / "rank00000").mkdir()
    capture = log.save(tmp_path / "rank00000", tmp_path)
    assert (capture.state, capture.reason) == ("recorded", None)
    head, *records = map(json.loads, (tmp_path / "rank00000" / "events.jsonl").read_text().splitlines())
    assert head["jax"] == jax.__version__
    retraces = [record for record in records if record["kind"] == "retrace" and record["function"] == "<lambda>"]
    assert len(retraces) == 1
    assert "f32[4]" in retraces[0]["reason"]
    assert {record["step"] for record in records} == {4}
    assert {record.get("file") for record in records} == {"test_events.py"}
    assert {"trace", "lower", "compile", "first_trace", "retrace"} <= {record["kind"] for record in records}
    assert all(record["function"] for record in records), "jax 0.6 gives durations no name"
    named = {kind: {one["function"] for one in records if one["kind"] == kind} for kind in ("trace", "compile")}
    assert "<lambda>" in named["trace"]
    assert "jit(<lambda>)" in named["compile"]
    assert not jax.config.jax_explain_cache_misses


@pytest.mark.jax
def test_a_program_that_asks_for_explanations_keeps_them(caplog: pytest.LogCaptureFixture) -> None:
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_explain_cache_misses", True)
    try:
        log = EventLog(CallSites(Path(__file__).parent), lambda: None)
        log.start()
        jax.jit(lambda x: jnp.cos(x) * 2)(jnp.ones(3))
        log.stop()
        assert jax.config.jax_explain_cache_misses
    finally:
        jax.config.update("jax_explain_cache_misses", False)
    assert [record for record in caplog.records if "CACHE MISS" in record.getMessage()]


@pytest.mark.jax
def test_a_slip_in_jaxs_explanation_is_no_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    import jax
    import jax.numpy as jnp

    def fail(*_: object) -> None:
        raise AssertionError("planted")

    for name in ("jax._src.interpreters.partial_eval", "jax._src.pjit"):
        module = importlib.import_module(name)
        if hasattr(module, "diff_tracing_cache_keys"):
            monkeypatch.setattr(module, "diff_tracing_cache_keys", fail)
    log = EventLog(CallSites(Path(__file__).parent), lambda: None)
    log.start()
    try:
        function = jax.jit(lambda x: jnp.tan(x) * 2)
        assert function(jnp.zeros(3)).shape == (3,)
        assert function(jnp.zeros(4)).shape == (4,)
    finally:
        log.stop()


@pytest.mark.jax
@pytest.mark.parametrize("action", ["ignore", "always", "error"])
def test_donated_buffers_that_are_not_usable_are_heard_whatever_the_program_filters(
    tmp_path: Path, action: str
) -> None:
    import jax
    import jax.numpy as jnp

    from perfscope.profiler.jax import compat

    mlir = compat.find("jax._src.interpreters.mlir", "warnings")
    assert mlir is warnings, "another test's listener is left"
    log = EventLog(CallSites(Path(__file__).parent), lambda: 4)
    log.start()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        try:

            def total(weights: Any, bias: Any) -> Any:
                return weights.sum() + bias.sum()

            given = (jnp.ones((4, 8)), jnp.ones(3, jnp.bfloat16))
            try:
                jax.jit(total, donate_argnums=(0, 1))(*given)
            except UserWarning:
                assert action == "error"
        finally:
            log.stop()
    said = [item for item in shown if "donated buffers" in str(item.message)]
    assert len(said) == (action == "always")
    assert all(Path(item.filename).name == "mlir.py" for item in said), "it is jax's line, as without us"
    assert compat.find("jax._src.interpreters.mlir", "warnings") is warnings
    (tmp_path / "rank00000").mkdir()
    log.save(tmp_path / "rank00000", tmp_path)
    _, *records = map(json.loads, (tmp_path / "rank00000" / "events.jsonl").read_text().splitlines())
    (heard,) = [record for record in records if record["kind"] == "donation_unusable"]
    assert heard["shapes"] == ["float32[4,8]", "bfloat16[3]"]
    assert (heard["count"], heard["step"], heard["module"], heard["file"]) == (2, 4, "jit_total", "test_events.py")
    events = read_events(tmp_path / "rank00000" / "events.jsonl")
    assert [event.shapes for event in events if event.kind == "donation_unusable"] == [("float32[4,8]", "bfloat16[3]")]


@pytest.mark.jax
def test_of_a_warning_only_shapes_are_kept_and_not_too_many() -> None:
    from perfscope.profiler.jax.donation_warnings import MAX_DONATION_SHAPES, _parse_donation_warning

    text = "Some donated buffers were not usable: " + ", ".join(f"ShapedArray(int8[{n},2])" for n in range(200))
    module_name = "jit(a b<script>)"
    found = _parse_donation_warning(f"{text}, secret=/home/me.\nSee float32[9]", sys._getframe())
    assert module_name
    assert (len(found.shapes), found.count, found.shapes[1]) == (MAX_DONATION_SHAPES, 200, "int8[1,2]")
    assert found.module == "jit_a_b_script"


@pytest.mark.jax
def test_where_jax_does_not_warn_in_the_place_we_know_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    monkeypatch.delattr(importlib.import_module("jax._src.interpreters.mlir"), "warnings")
    log = EventLog(CallSites(Path(__file__).parent), lambda: None)
    log.start()
    log.stop()
    (tmp_path / "rank00000").mkdir()
    capture = log.save(tmp_path / "rank00000", tmp_path)
    assert capture.reason == "no donated buffers that are not usable: this jax does not say it where we know"
