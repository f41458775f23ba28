"""The terminal's report, compared whole: what a person sees is what is tested."""

from __future__ import annotations

from textwrap import dedent

import pytest

from perfscope.dashboards.report.text import MOST_FINDINGS, render
from perfscope.dashboards.report.text_page import NARROWEST
from perfscope.model.finding import Finding, Outcome
from tests.report.analyses import HOSTILE_NAMES, MS, analysis, device, hostile, source


def same(text: str, expected: str) -> None:
    assert text == dedent(expected).lstrip("\n")


def test_one_screen() -> None:
    same(
        render(analysis()),
        """
        perfscope: ~/traces/trace.json.gz (kineto, rank 0, 120,345 events)
          step 40.5 ms (median of 12 without a profiler, p10-p90 40.1 ms to 41.0 ms)
          step 42.0 ms (median of 5 while traced, min-max 41.0 ms to 43.0 ms)
          device busy 83.0%

          rank  device             span  compute  comm exposed  copy exposed   idle
          0     NVIDIA H200 (0)  206 ms    77.7%          3.9%          1.5%  17.0%

          saves up to  of step  finding                                                 where               known by
          6.90 ms        16.5%  host-sync: .item() makes the host wait 40 times; the    ~/proj/train.py:88  measured
                                device is idle 6.90 ms a step for it
          800 us          1.9%  unfused-ops: add -> mul -> silu run as 3 kernels and    model.layers.0.mlp  modelled
                                move 1.90 GiB that one fused kernel would not
          no time               host-sync: nonzero has an output whose size the host    moe.py:41           structural
                                must wait for

          clean: input-stall, launch-bound (2)
          could not look: exposed-communication, nvlink-stall (not recorded: collectives with their sizes)
          unplaced: 12 of 120,345 events (12 kernel without a device)
          repaired: 2 unescaped quotes
          note: 3 kernels were launched before the capture began; they are kept.

          next  perfscope rules host-sync     -v for evidence and advice
        """,
    )


def test_many_ranks_are_folded_and_ranks_are_named() -> None:
    devices = tuple(device(rank, compute=160 - 30 * (rank == 37)) for rank in range(64))
    sources = tuple(source(f"traces/rank{rank}.json", rank) for rank in range(64))
    text = render(analysis(devices=devices, sources=sources))
    same(
        text[: text.index("\n\n", text.index("rank  ")) + 1],
        """
        perfscope: 64 traces, traces/rank0.json ... (kineto, ranks 0-63, 7,702,080 events)
          step 40.5 ms (median of 12 without a profiler, p10-p90 40.1 ms to 41.0 ms)
          step 42.0 ms (median of 5 while traced, min-max 41.0 ms to 43.0 ms)
          devices busy 82.8% (mean of 64)

          rank         device                       span  compute  comm exposed  copy exposed   idle
          37           NVIDIA H200 (0)            206 ms    63.1%          3.9%          1.5%  31.6%
          0-36, 38-63  NVIDIA H200 (x63, median)  206 ms    77.7%          3.9%          1.5%  17.0%
        """,
    )
    assert "(rank 0)" in text


def test_verbose_adds_evidence_and_advice() -> None:
    text = render(analysis(), verbose=True)
    lines = text.splitlines()
    first = lines.index("    at ~/proj/train.py:88, module train.Loop, op aten::_local_scalar_dense")
    assert (
        lines[first - 1]
        == "  host-sync: .item() makes the host wait 40 times; the device is idle 6.90 ms a step for it"
    )
    assert lines[first + 1 : first + 12] == [
        "    call                   step     wait  idle share",
        "    cudaStreamSynchronize     3  1.20 ms       91.0%",
        "    cudaStreamSynchronize     4   980 us       40.0%",
        "    Keep the loss on the device and read it every 100 steps:",
        "",
        "    ```python",
        "    if step % 100 == 0:",
        "        print(loss.item())",
        "    ```",
        "",
        "    Or use `loss.detach()` and sum on the device.",
    ]
    assert "    module model.layers.0.mlp, op aten::silu, moves 1.90 GiB" in lines


def test_nothing_to_say_is_said() -> None:
    clean = (Outcome(rule="host_sync", status="clean"),)
    same(
        render(analysis(sources=(source("a.json", None),), devices=(), steps=(), outcomes=clean)),
        """
        perfscope: a.json (kineto, 120,345 events)
          no steps in it: savings are over the whole trace
          no accelerator work in it

          no findings

          clean: host-sync (1)
        """,
    )


def test_all_rules_blind_is_not_clean() -> None:
    blind = (Outcome(rule="host_sync", status="abstained", reason="not recorded: x"),)
    text = render(analysis(outcomes=blind))
    assert "no rule could look at this: nothing is known to be clean" in text
    assert "no findings" not in text
    assert "clean:" not in text


def test_more_findings_than_a_screen_holds_are_counted() -> None:
    findings = tuple(
        Finding(subject=str(n), title=f"finding {n}", severity="low", basis="measured", advice="", cost_ns=n,
                cost_ns_per_step=(100 - n) * MS)
        for n in range(MOST_FINDINGS + 3)
    )  # fmt: skip
    outcomes = (Outcome(rule="host_sync", status="flagged", findings=findings),)
    text = render(analysis(outcomes=outcomes))
    assert f"finding {MOST_FINDINGS - 1}" in text
    assert f"finding {MOST_FINDINGS} " not in text
    assert "and 3 more" in text
    assert "and 3 more" not in render(analysis(outcomes=outcomes), verbose=True)


@pytest.mark.parametrize("width", [20, 60, 80, 110, 200])
@pytest.mark.parametrize("name", [*HOSTILE_NAMES, "plain"])
def test_no_name_breaks_the_width_or_steers_the_terminal(name: str, width: int) -> None:
    text = render(hostile(name), width=width)
    assert all(len(line) <= max(width, NARROWEST) for line in text.splitlines())
    assert not any(character != "\n" and ord(character) < 32 for character in text)
    assert "\x1b" not in text
    text.encode()


def test_color_is_only_there_when_asked() -> None:
    assert "\x1b[" in render(analysis(), color=True)
    assert "\x1b[" not in render(analysis(), color=False)


def test_markup_of_a_name_is_shown_and_not_obeyed() -> None:
    assert "[bold red]markup[/] :smile:" in render(hostile("[bold red]markup[/] :smile:"))


def test_several_reasons_are_a_list_and_rows_left_out_are_counted() -> None:
    rows = tuple({"n": n} for n in range(25))
    finding = Finding(subject="s", title="t", severity="low", basis="measured", advice="Do it.", evidence=rows)
    outcomes = (
        Outcome(rule="a_rule", status="abstained", reason="not recorded: x"),
        Outcome(rule="b_rule", status="abstained", reason="one rank"),
        Outcome(rule="c_rule", status="flagged", findings=(finding,)),
    )
    text = render(analysis(outcomes=outcomes), verbose=True)
    assert "  could not look:\n    a-rule (not recorded: x)\n    b-rule (one rank)\n" in text
    assert "    19\n    and 5 more rows in the JSON report\n    Do it.\n" in text.replace("     19", "    19")


@pytest.mark.parametrize(
    ("path", "again"),
    [
        ("traces/a.json", "perfscope analyze -v traces/a.json"),
        ("my trace.json", "perfscope analyze -v 'my trace.json'"),
        ("/home/alice/a.json", "-v for evidence and advice"),
        ("x" * 100, "-v for evidence and advice"),
        ("a\x1b[1mb", "-v for evidence and advice"),
    ],
)
def test_the_next_command_can_be_pasted_or_is_not_offered(path: str, again: str) -> None:
    text = render(analysis(sources=(source(path),)))
    assert text.splitlines()[-1] == f"  next  perfscope rules host-sync     {again}"


def test_no_share_no_column() -> None:
    finding = Finding(subject="s", title="t", severity="low", basis="structural", advice="")
    outcomes = (Outcome(rule="r", status="flagged", findings=(finding,)),)
    assert "  saves up to  finding  where  known by\n  no time      r: t     -      structural\n" in render(
        analysis(outcomes=outcomes)
    )
