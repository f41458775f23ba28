"""The runner of the tests itself: were it lenient, they would be worth nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ci.runner import evaluated, filled, job

CONTEXT = {
    "github": {"event": {"before": "b"}, "token": "t"},
    "steps": {"a": {"outputs": {"x": ""}}},
    "inputs": {"fail-on": "y"},
}

ACTION = """
inputs: {word: {description: a word, default: "${{ github.token }}"}}
runs:
  using: composite
  steps:
    - {name: one, id: one, shell: bash, run: 'echo "said=$WORD" >>"$GITHUB_OUTPUT"', env: {WORD: "${{ inputs.word }}"}}
    - {name: two, shell: bash, run: 'false | true', if: "steps.one.outputs.said == 'fail'"}
    - {name: three, shell: bash, run: 'echo "$0 $PWD" >>"$GITHUB_STEP_SUMMARY"'}
"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("inputs.fail-on", "y"),
        ("steps.a.outputs.x != ''", False),
        ("steps.gone.outputs.x", None),
        ("github.event.pull_request.base.sha || github.event.before", "b"),
        ("github.token && inputs.fail-on", "y"),
        ("github.token == 't'", True),
    ],
)
def test_expressions(expression: str, value: object) -> None:
    assert evaluated(expression, CONTEXT) == value


def test_what_it_does_not_know_is_an_error() -> None:
    for expression in ("always()", "a ? b", "fromJSON(inputs.x)"):
        with pytest.raises(AssertionError, match="not known"):
            evaluated(expression, CONTEXT)
    assert filled("x ${{ github.token }} ${{ github.none }}", CONTEXT) == "x t "


def test_steps_run_in_order_until_one_fails(tmp_path: Path) -> None:
    (tmp_path / "action.yml").write_text(ACTION)
    one = job(tmp_path / "job", tmp_path, "push", {}, token="t")
    assert one.run(tmp_path, {}) == 0
    assert one.outputs["one"]["outputs"] == {"said": "t"}
    assert [step.skipped for step in one.ran] == [False, True, False]
    assert str(tmp_path) in one.summary

    two = job(tmp_path / "again", tmp_path, "push", {})
    assert two.run(tmp_path, {"word": "fail"}) == 1
    assert [step.skipped for step in two.ran] == [False, False, True]
    with pytest.raises(AssertionError, match="does not have"):
        two.run(tmp_path, {"words": "x"})


def test_an_expression_in_the_shell_is_refused(tmp_path: Path) -> None:
    (tmp_path / "action.yml").write_text(ACTION.replace("false | true", "echo ${{ inputs.word }}"))
    with pytest.raises(AssertionError, match=r"inputs\.word"):
        job(tmp_path / "job", tmp_path, "push", {}).run(tmp_path, {"word": "fail"})
