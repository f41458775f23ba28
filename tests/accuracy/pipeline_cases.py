"""Labelled cases of what is around the step: saves, evaluations."""

from __future__ import annotations

from tests.accuracy.case import Case, Program, jax_program, torch_program

_SAVES = {"sync": "torch.save(self.state()", "dcp": "dcp.save(self.state()"}
_EVALUATES = {"eval_stall": "evaluated.append(evaluate(", "needless_grad": "loss_of(model, tokens_BM) * len"}
_IN_JAX = (
    ("saves in the loop, npz", "tiny", ("checkpoint", "--defect", "npz"), ("checkpoint", "--twin"),
     {"checkpoint_stall": "np.savez("}),
)  # fmt: skip
_METRICS = {"tracker": {"host_bound": "json.dumps({"}, "clip": {"host_sync": "norm.item()"}}


_FILES = "perfscope.workloads.pipelines.files"

PIPELINES: tuple[Case, ...] = (
    Case(
        name="one file per sample",
        framework="torch",
        mode="eager",
        source=Program(module=_FILES, arguments=()),
        twin=Program(module=_FILES, arguments=("--twin",)),
        expects={"storage_bound": "np.fromfile(self.paths"},
    ),
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
        source=torch_program("pipelines.evaluation", "--defect", "single", "--defect", "graph", steps=100),
        twin=torch_program("pipelines.evaluation", steps=100),
        expects=_EVALUATES,
    ),
    *(
        Case(
            name=f"metrics, {defect}",
            framework="torch",
            mode="eager",
            source=torch_program("pipelines.metrics", "--defect", defect, steps=60),
            twin=torch_program("pipelines.metrics", steps=60),
            expects=expects,
        )
        for defect, expects in _METRICS.items()
    ),
    *(
        Case(
            name=name,
            framework="jax",
            mode="jit",
            source=jax_program(f"pipelines.{defect[0]}", *defect[1:], size=size, steps=100),
            twin=jax_program(f"pipelines.{twin[0]}", *twin[1:], size=size, steps=100),
            expects=expects,
        )
        for name, size, defect, twin, expects in _IN_JAX
    ),
)
