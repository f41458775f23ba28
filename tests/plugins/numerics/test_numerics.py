"""Records of `perfscope run --numerics` for planted defects, and findings on them and their twins."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import analyze
from perfscope.dashboards.report import render
from perfscope.model.errors import DataError
from perfscope.model.trace import Source, Trace
from perfscope.plugins.numerics.document import FORMATS, Numerics, dump_numerics, load_numerics
from tests import warm
from tests.rules import judged_by

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

RULES = ("nonfinite", "low_precision_accumulation", "unstable_scale")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def recorded() -> Any:
    """Records what a call does: ``recorded(call)`` calls it with the counter of its steps."""
    from perfscope.plugins.numerics.torch.recorder import Recorder

    def run(program: Callable[[list[int]], None], *, every_step: bool = False) -> Numerics:
        step = [0]
        recorder = Recorder(lambda: step[0], every_step=every_step)
        recorder.start()
        try:
            program(step)
        finally:
            recorder.stop()
        return load_again(recorder.document(lambda moment: moment[0], step[0]))

    return run


def load_again(numerics: Numerics) -> Numerics:
    """As it comes back from a file: numbers that JSON has none for would show here."""
    import msgspec

    return msgspec.json.decode(gzip.decompress(dump_numerics(numerics)), type=Numerics)


def trace_of(numerics: Numerics) -> Trace:
    source = Source(path="run", format="run", rank=None, events_read=0, events_unplaced=0)
    return Trace(source=source, strings=(), rows={}, recorded=frozenset({"numerics"}), documents={"numerics": numerics})


def batches(count: int, *, dtype: Any = None, width: int = 8) -> list[Any]:
    return [torch.randn(4, width, dtype=dtype) for _ in range(count)]


def tensor(numerics: Numerics, kind: str, name: str) -> Any:
    (found,) = [item for item in numerics.tensors if (item.kind, item.name) == (kind, name)]
    return found


@pytest.mark.parametrize("index", range(len(FORMATS)))
def test_formats_are_those_of_torch(index: int) -> None:
    name = {"float8_e4m3": "float8_e4m3fn"}.get(FORMATS[index].name, FORMATS[index].name)
    item, dtype = FORMATS[index], getattr(torch, name)
    thresholds = torch.tensor([item.zero, item.normal, item.largest])
    near = torch.cat([torch.nextafter(thresholds, torch.tensor(side)) for side in (0.0, float("inf"))])
    values = torch.cat([thresholds, near])
    cast = values.to(dtype).float()
    assert torch.equal(cast == 0, values <= item.zero)
    assert torch.equal(cast < item.normal, values.to(dtype).float() < torch.finfo(dtype).tiny)
    if name != "float8_e4m3fn":  # which torch saturates in some versions and makes NaN in others
        assert torch.equal(torch.isinf(cast), values > item.largest)
    else:
        assert item.largest == torch.finfo(dtype).max + 16  # half of its last unit, 32


def test_counts_are_those_of_the_tensor() -> None:
    from perfscope.plugins.numerics.torch.statistics import counts, extremes

    values = torch.tensor([0.0, -0.0, 1.0, -7e4, 1e-5, 1e-9, float("inf"), float("nan")])
    zero, *lost, counted = counts(values).tolist()
    half = dict(zip(("overflow", "flushed", "subnormal"), lost[3:6], strict=True))
    assert (zero, counted) == (2, 6)
    assert half == {"overflow": 1, "flushed": 1, "subnormal": 1}
    assert extremes(torch.tensor([1.0, -3.0])).tolist() == [-3.0, 1.0]
    assert extremes(values).isnan().all()


def test_large_tensors_are_counted_in_part() -> None:
    from perfscope.plugins.numerics.counting import MOST_COUNTED
    from perfscope.plugins.numerics.torch.statistics import counts

    values = torch.ones(MOST_COUNTED * 5 // 2)
    values[::64] = 0.0  # one column of 64: a distance of 4 or 8 would hit it far too often
    zero, *_, counted = counts(values).tolist()
    assert MOST_COUNTED / 2 < counted <= MOST_COUNTED
    assert zero / counted == pytest.approx(1 / 64, rel=0.01)


def overflowing(step: list[int]) -> None:
    """From step 4 on, which is not watched by default."""
    from tests.plugins.numerics.planted import Blocks, train

    given = [batch * (1 if number < 4 else 20) for number, batch in enumerate(batches(8, dtype=torch.float16))]
    train(Blocks(500.0).half(), given, step, rate=1e-12)


def test_overflow_is_named_at_its_op_line_and_step(recorded: Any) -> None:
    from tests.plugins.numerics.planted import line_of

    numerics = recorded(overflowing, every_step=True)
    (finding,) = judged_by("nonfinite")(trace_of(numerics)).findings
    assert finding.where.label() == line_of("overflow")
    assert (finding.where.module, finding.where.op) == ("Blocks.blocks.1", "mul")
    assert "from step 4 on" in finding.title
    assert finding.evidence[0]["step"] == 4
    assert "bfloat16" in finding.advice
    assert tensor(numerics, "output", "Blocks.blocks.1.up").nonfinite_steps < 4


def test_the_entropy_of_a_masked_policy_has_advice_about_infinity(recorded: Any) -> None:
    from tests.plugins.numerics.planted import MaskedEntropy, line_of, train

    (finding,) = judged_by("nonfinite")(
        trace_of(recorded(lambda step: train(MaskedEntropy(), batches(2), step)))
    ).findings
    assert (finding.where.label(), finding.where.op) == (line_of("entropy"), "mul")
    assert "0 times infinity is NaN" in finding.advice
    assert "learning rate" not in finding.advice


def test_where_ops_are_not_watched_the_module_is_named(recorded: Any) -> None:
    from tests.plugins.numerics.planted import line_of

    (finding,) = judged_by("nonfinite")(trace_of(recorded(overflowing))).findings
    assert finding.title == "output Blocks.blocks.1.down is not finite from step 4 on"
    assert finding.where.label() == line_of("down")
    assert "--level deep" in finding.advice


def test_what_happens_again_is_watched_then(recorded: Any) -> None:
    from tests.plugins.numerics.planted import Blocks, line_of

    model = Blocks(500.0).half()

    def infer(step: list[int]) -> None:
        for number, batch in enumerate(batches(8, dtype=torch.float16)):
            with torch.no_grad():
                model(batch * (1 if number < 4 else 20))
            step[0] += 1

    (finding,) = judged_by("nonfinite")(trace_of(recorded(infer))).findings
    assert finding.where.label() == line_of("overflow")
    assert finding.title == "mul of Blocks.blocks.1 is not finite from step 4 on"
    assert "The op was seen in step 5." in finding.detail


def test_its_twin_in_bfloat16_is_clean(recorded: Any) -> None:
    from tests.plugins.numerics.planted import Blocks, train

    given = [batch * 10 for batch in batches(8, dtype=torch.bfloat16)]
    numerics = recorded(lambda step: train(Blocks(500.0).bfloat16(), given, step, rate=1e-12))
    outcome = judged_by("nonfinite")(trace_of(numerics))
    assert (outcome.status, numerics.nonfinite) == ("clean", ())
    assert tensor(numerics, "output", "Blocks.blocks.1").formats[1].overflow > 0  # which float16 would not hold


@pytest.mark.parametrize("trains", [True, False])
def test_masks_of_infinity_are_clean(recorded: Any, trains: bool) -> None:
    from tests.plugins.numerics.planted import Masked, train

    model = Masked()

    def infer(step: list[int]) -> None:
        for batch in batches(4):
            with torch.no_grad():
                model(batch)
            step[0] += 1

    numerics = recorded((lambda step: train(model, batches(4), step)) if trains else infer)
    assert judged_by("nonfinite")(trace_of(numerics)).status == "clean"
    assert [event.name for event in numerics.nonfinite] == ["Masked.mask"]  # seen, and no defect


def test_a_loss_that_overflows_once(recorded: Any) -> None:
    from tests.plugins.numerics.planted import Blocks, train

    factors = [1e39 if step == 4 else 1.0 for step in range(8)]  # not watched; in the next step all parameters are NaN
    numerics = recorded(lambda step: train(Blocks(1.0), batches(8), step, factors=factors))
    (finding,) = judged_by("nonfinite")(trace_of(numerics)).findings
    assert finding.title == "the loss is not finite from step 4 on"


def test_of_several_ranks_the_one_is_named_in_which_it_began(recorded: Any) -> None:
    from tests.plugins.numerics.planted import Blocks, train

    def rank(number: int, step: int) -> Trace:
        given = batches(6)
        given[step][0, 0] = float("nan")
        numerics = recorded(lambda counter: train(Blocks(1.0), given, counter))
        source = Source(path=f"run/{number}", format="run", rank=number, events_read=0, events_unplaced=0)
        return replace(trace_of(numerics), source=source)

    outcome = analyze([rank(0, 4), rank(1, 3)], ["nonfinite"])["nonfinite"]
    (finding,) = outcome.findings
    assert finding.ranks == (1,)
    assert "from step 3 on" in finding.title


def test_a_batch_with_nan_is_named(recorded: Any) -> None:
    from tests.plugins.numerics.planted import Blocks, train

    given = batches(4)
    given[2][1, 3] = float("nan")
    (finding,) = judged_by("nonfinite")(trace_of(recorded(lambda step: train(Blocks(1.0), given, step)))).findings
    assert finding.title == "input Blocks, input 0 is not finite from step 2 on"
    assert finding.advice.startswith("Leave out batches")


@pytest.mark.parametrize(("length", "half", "status"), [(1 << 19, True, "flagged"), (128, True, "clean")])
def test_softmax_in_float16(recorded: Any, length: int, half: bool, status: str) -> None:
    from tests.plugins.numerics.planted import LongSoftmax, line_of

    model = LongSoftmax(length, torch.float16)

    def infer(step: list[int]) -> None:
        with torch.no_grad():
            model(torch.randn(1, 4) * 0.01)

    outcome = judged_by("low_precision_accumulation")(trace_of(recorded(infer)))
    assert outcome.status == status
    for finding in outcome.findings:
        assert finding.where.label() == line_of("softmax")
        assert (finding.where.module, finding.where.op) == ("LongSoftmax", "_softmax")
        assert finding.evidence[0]["terms"] == length


@pytest.mark.parametrize(("planted", "status"), [(True, "flagged"), (False, "clean")])
def test_variance_in_bfloat16(recorded: Any, planted: bool, status: str) -> None:
    from tests.plugins.numerics.planted import Variance, line_of, train

    numerics = recorded(lambda step: train(Variance(planted=planted), batches(3, width=64), step))
    outcome = judged_by("low_precision_accumulation")(trace_of(numerics))
    assert outcome.status == status
    assert numerics.reductions > 0
    for finding in outcome.findings:
        assert (finding.where.label(), finding.where.op) == (line_of("cancellation"), "sub")
        assert finding.where.module == "Variance"


@pytest.mark.parametrize(
    ("dtype", "rate", "status"),
    [("bfloat16", 1e-9, "flagged"), ("bfloat16", 30.0, "clean"), ("bfloat16", 0.0, "clean"), ("float32", 1e-9, "none")],
)
def test_updates_too_small_for_bfloat16(recorded: Any, dtype: str, rate: float, status: str) -> None:
    from tests.plugins.numerics.planted import train

    model = torch.nn.Linear(8, 4, dtype=getattr(torch, dtype))
    numerics = recorded(lambda step: train(model, batches(3, dtype=getattr(torch, dtype)), step, rate=rate))
    outcome = judged_by("low_precision_accumulation")(trace_of(numerics))
    updates = [finding for finding in outcome.findings if finding.subject == "updates that change nothing"]
    assert bool(updates) == (status == "flagged")
    if status == "none":  # nothing in 16 bits: neither flagged nor clean
        assert outcome.status == "abstained"


def scaler() -> Any:
    return torch.amp.GradScaler("cpu", init_scale=2.0**16)


def test_a_scale_that_keeps_falling(recorded: Any) -> None:
    from tests.plugins.numerics.planted import Rooted, train

    model, kept = Rooted(), scaler()
    numerics = recorded(lambda step: train(model, batches(40), step, scaler=kept))
    outcome = judged_by("unstable_scale")(trace_of(numerics))
    (finding,) = outcome.findings
    assert finding.title == "the loss scale falls in 20 of 40 steps, to 0.0625"
    assert finding.where.module == "Rooted.linear"
    assert numerics.scale_halved == tuple(range(1, 40, 2))
    assert judged_by("nonfinite")(trace_of(numerics)).status == "clean"  # what the scaler answers


def test_a_scale_that_settles_is_clean(recorded: Any) -> None:
    from tests.plugins.numerics.planted import train

    factors = [1e36] * 40  # times 65536 it is beyond float32, and fits after some halvings
    model = torch.nn.Linear(8, 4)
    numerics = recorded(lambda step: train(model, batches(40), step, scaler=scaler(), factors=factors, rate=1e-38))
    assert len(numerics.scale_halved) > 3
    assert judged_by("unstable_scale")(trace_of(numerics)).status == "clean"


def test_without_a_scaler_the_rule_is_not_evaluated(recorded: Any) -> None:
    from tests.plugins.numerics.planted import Blocks, train

    outcome = judged_by("unstable_scale")(trace_of(recorded(lambda step: train(Blocks(1.0), batches(3), step))))
    assert (outcome.status, outcome.reason) == ("abstained", "no torch.amp.GradScaler scaled a loss")


def test_values_of_steps(recorded: Any) -> None:
    model, losses, norms = torch.nn.Linear(8, 4), [], []

    def program(step: list[int]) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches(4):
            loss = model(batch).square().mean()
            loss.backward()
            losses.append(loss.item())
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item())
            optimizer.step()
            optimizer.zero_grad()
            step[0] += 1

    numerics = recorded(program)
    assert [step.step for step in numerics.steps] == [0, 1, 2, 3]
    assert [step.loss for step in numerics.steps] == pytest.approx(losses)
    assert [step.gradient_norm for step in numerics.steps] == pytest.approx(norms)
    weight = tensor(numerics, "parameter", "Linear.weight")
    assert [step for step, _ in weight.amax] == [0, 1, 2, 3]
    assert weight.amax[-1][1] == pytest.approx(model.weight.abs().max().item())
    assert numerics.watched == (0, 1)


def test_histories_stay_short() -> None:
    from perfscope.plugins.numerics.history import MOST_AMAX, Row

    row = Row("")
    for moment in range(1000):
        row.add(moment, float(moment % 777), [], 4)
    assert len(row.amax) <= MOST_AMAX
    assert max(largest for _, largest in row.amax) == 776.0
    assert [moment for moment, _ in row.amax] == sorted(moment for moment, _ in row.amax)


def test_torch_is_left_as_it_was(recorded: Any) -> None:
    from torch.nn.modules import module

    from perfscope.profiler.torch import compat
    from tests.plugins.numerics.planted import Blocks, train

    before = (torch.Tensor.backward, torch.compile, torch.amp.GradScaler.scale, torch.amp.GradScaler.update)
    recorded(lambda step: train(Blocks(1.0), batches(2), step))
    after = (torch.Tensor.backward, torch.compile, torch.amp.GradScaler.scale, torch.amp.GradScaler.update)
    assert before == after
    assert not module._global_forward_hooks
    assert not module._global_forward_pre_hooks
    assert compat.modes_on_stack() == 0


def test_results_stay_bit_identical(recorded: Any) -> None:
    from tests.plugins.numerics.planted import Blocks, train

    def weights(run: Callable[[Callable[[list[int]], None]], Any]) -> Any:
        torch.manual_seed(1)
        model = Blocks(1.0)
        given = batches(4)
        run(lambda step: train(model, given, step))
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(weights(lambda program: program([0])), weights(recorded))


def test_a_compiled_model_is_compiled_once_and_seen_from_outside(recorded: Any) -> None:
    from tests.plugins.numerics.planted import Blocks, train

    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def program(step: list[int]) -> None:
        train(torch.compile(Blocks(1.0), backend=backend), batches(5), step)

    numerics = recorded(program)
    assert len(graphs) == 1
    assert "TORCHDYNAMO_DISABLE=1" in numerics.notes[0]
    assert {item.kind for item in numerics.tensors} >= {"input", "output", "loss", "parameter", "parameter gradient"}
    assert not [item for item in numerics.tensors if "blocks.0.up" in item.name and item.kind == "output"]
    assert numerics.watched == ()


@pytest.mark.parametrize("rule", RULES)
def test_not_evaluated_without_numerics(rule: str) -> None:
    source = Source(path="run", format="run", rank=None, events_read=0, events_unplaced=0)
    outcome = judged_by(rule)(Trace(source=source, strings=(), rows={}, recorded=frozenset()))
    assert outcome.status == "abstained"
    assert "perfscope run --numerics" in str(outcome.reason)


def test_corrupt_files_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "numerics.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"schema": "perfscope.numerics/1", "tensors": 3}).encode()))
    with pytest.raises(DataError, match="not numerics"):
        load_numerics(file)


def test_run_and_report(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\n"
        "torch.manual_seed(0)\n"
        "model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(6):\n"
        "    output = model(torch.randn(4, 8))\n"
        "    loss = (output.square() - (9e9 if step >= 3 else 0.0)).clamp(min=0).log().mean()\n"
        "    loss.backward(); optimizer.step(); optimizer.zero_grad()\n"
    )
    command = [sys.executable, "-m", "perfscope", "run", "--numerics", "--name", "x", "-o", "runs", "train.py"]
    done = warm.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "log of the loss is not finite from step 3 on" in done.stderr
    assert "train.py:7" in done.stderr
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if not path.is_symlink())
    document = json.loads((folder / "report.json").read_text())
    assert document["numerics"][0]["steps"] == 6
    assert {row["name"] for row in document["numerics"][0]["rows"]} >= {"Sequential.0", "loss", "Sequential.1.weight"}

    import perfscope

    trace = perfscope.load(folder)
    analysis = analyze(trace)
    assert "numerics" in trace.documents
    assert not len(trace.rows["kernels"])
    for form in ("html", "markdown", "text"):
        assert "Sequential.1" in render(analysis, form)


def test_options_that_profile_are_a_usage_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perfscope", "run", "--numerics", "--level", "light", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--numerics records no profile" in done.stderr
