"""Labelled cases of what is around the step: saves, evaluations."""

from __future__ import annotations

from tests.accuracy.case import Case, Program, torch_program

_SAVES = {"sync": "torch.save(self.state()", "dcp": "dcp.save(self.state()"}
_EVALUATES = {"eval_stall": "evaluated.append(evaluate(", "needless_grad": "loss_of(model, tokens_BM) * len"}
_IN_JAX = {
    "numpy": (("jax_checkpoint", "--defect", "npz"), ("jax_checkpoint", "--twin"), {"checkpoint_stall": "np.savez("}),
    "evaluation": (
        ("jax_evaluation", "--defect", "single", "--defect", "item"),
        ("jax_evaluation",),
        {"eval_stall": "evaluated.append(evaluate("},
    ),
}


def _jax(program: str, *arguments: str) -> Program:
    return Program(
        module=f"perfscope.workloads.pipelines.{program}", arguments=("--size", "tiny", "--steps", "80", *arguments)
    )


PIPELINES: tuple[Case, ...] = (
    *(
        Case(
            name=f"saves in the loop, {way}",
            framework="torch",
            mode="eager",
            source=torch_program("pipelines.checkpoint", "--defect", way, steps=60),
            twin=torch_program("pipelines.checkpoint", "--twin", steps=60),
            expects={"checkpoint_stall": line},
        )
        for way, line in _SAVES.items()
    ),
    Case(
        name="evaluation by single sequences with gradients",
        framework="torch",
        mode="eager",
        source=torch_program("pipelines.evaluation", "--defect", "single", "--defect", "graph", steps=80),
        twin=torch_program("pipelines.evaluation", steps=80),
        expects=_EVALUATES,
    ),
    *(
        Case(
            name=f"pipelines, {name}",
            framework="jax",
            mode="jit",
            source=_jax(*defect),
            twin=_jax(*twin),
            expects=lines,
        )
        for name, (defect, twin, lines) in _IN_JAX.items()
    ),
)
