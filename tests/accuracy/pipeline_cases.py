"""Labelled cases of what is around the step: saves, evaluations."""

from __future__ import annotations

from tests.accuracy.case import Case, Program, jax_program, torch_program

_SAVES = {"sync": "torch.save(self.state()", "dcp": "dcp.save(self.state()"}
_EVALUATES = {"eval_stall": "evaluated.append(evaluate(", "needless_grad": "loss_of(model, tokens_BM) * len"}
_IN_JAX = (
    ("npz", "np.savez(self.folder", ()),
    ("orbax", "self.manager.save(", ("orbax",)),
    ("wait", "self.manager.wait_until_finished()", ("orbax",)),
    ("safetensors", '"safetensors.numpy"', ("safetensors",)),
)
_METRICS: dict[str, dict[str, str | None]] = {
    "tracker": {"host_bound": "json.dumps({"},
    "tensorboard": {"host_bound": "board.add_histogram"},
    "clip": {"host_sync": "norm.item()"},
}
_DECODING = {"video": "frames = [frame.to_ndarray", "audio": "file.decode(audio=0)"}


_FILES, _CLIPS = "perfscope.workloads.pipelines.files", "perfscope.workloads.pipelines.decoding"

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
            needs=("tensorboard",) if defect == "tensorboard" else (),
        )
        for defect, expects in _METRICS.items()
    ),
    *(
        Case(
            name=f"a whole {media} decoded for each clip",
            framework="torch",
            mode="eager",
            source=Program(module=_CLIPS, arguments=("--media", media, "--defect", "whole")),
            twin=Program(module=_CLIPS, arguments=("--media", media, "--workers", "2")),
            expects={"input_stall": line},
            needs=("av",),
        )
        for media, line in _DECODING.items()
    ),
    *(
        Case(
            name=f"saves in the loop, {way}",
            framework="jax",
            mode="jit",
            source=jax_program("pipelines.checkpoint", "--defect", way, steps=100),
            twin=jax_program("pipelines.checkpoint", "--twin", steps=100),
            expects={"checkpoint_stall": line},
            needs=needs,
        )
        for way, line, needs in _IN_JAX
    ),
)
