"""Configurations of other programs: read, and written back with a mesh."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from perfscope.__main__ import run
from perfscope.model.errors import DataError
from perfscope.plugins.plan.candidate import Candidate, Mesh
from perfscope.plugins.plan.document import PlannedCandidate
from perfscope.plugins.plan.formats import read_configuration, written
from perfscope.plugins.plan.sections import stage_layers

TITAN = """\
# a comment that stays
[model]
name = "llama3"

[training]
local_batch_size = 2
seq_len = 8192  # tokens

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
"""
MAXTEXT = """\
base_emb_dim: 2048
base_num_query_heads: 16
base_num_kv_heads: 16
base_mlp_dim: 7168
base_num_decoder_layers: 16
head_dim: 128
vocab_size: 32000
global_parameter_scale: 16
max_target_length: 2048
per_device_batch_size: 6.0
ici_fsdp_parallelism: -1 # recommended ICI axis to be auto-sharded
remat_policy: 'full'
"""
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: true
num_processes: 8
"""


def row(mesh: Mesh, **changes: object) -> PlannedCandidate:
    fields = {"micro_batch": 2, "policy": "dots", "schedule": "1f1b" if mesh.pipeline > 1 else "none", **changes}
    return PlannedCandidate(
        candidate=Candidate(mesh=mesh, **fields), micro_batches=8, layers=(), step_low_ns=1, step_middle_ns=1,  # type: ignore[arg-type]
        step_high_ns=1, memory_low=1, memory_high=1, fits=True, equal_to_best=True,
    )  # fmt: skip


def read(folder: Path, text: str, name: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_torchtitan(tmp_path: Path) -> None:
    configuration = read_configuration(read(tmp_path, TITAN, "llama.toml"))
    assert (configuration.kind, configuration.sequence, configuration.per_device) == ("torchtitan", 8192, 2)
    text = written(configuration, row(Mesh(fsdp=4, tensor=2, pipeline=2)), 16, 64)
    document = tomllib.loads(text)
    assert document["parallelism"] == {
        "data_parallel_shard_degree": 4, "tensor_parallel_degree": 2, "data_parallel_replicate_degree": 1,
        "fsdp_reshard_after_forward": "always", "pipeline_parallel_degree": 2, "context_parallel_degree": 1,
        "expert_parallel_degree": 1, "pipeline_parallel_schedule": "1F1B", "pipeline_parallel_microbatch_size": 2,
    }  # fmt: skip
    assert document["training"] == {"local_batch_size": 16, "seq_len": 8192, "global_batch_size": 64}
    assert document["activation_checkpoint"] == {"mode": "selective"}
    assert text.startswith("# a comment that stays\n")
    assert "seq_len = 8192  # tokens" in text
    with pytest.raises(DataError, match="no schedule like zb-h1"):
        written(configuration, row(Mesh(pipeline=2), schedule="zb-h1"), 2, 64)


def test_maxtext_with_a_base(tmp_path: Path) -> None:
    file = tmp_path / "small.yml"
    file.write_text('base_config: "base.yml"\n' + MAXTEXT.replace("vocab_size: 32000\n", ""))
    assert read_configuration(str(file)).missing == ("vocab_size",)
    (tmp_path / "base.yml").write_text("vocab_size: 32_000 # powers of 2\nbase_emb_dim: 1\n")
    model = read_configuration(str(file)).model
    assert model is not None
    assert (model.vocab, model.hidden) == (32_000, 4096)


def test_maxtext(tmp_path: Path) -> None:
    configuration = read_configuration(read(tmp_path, MAXTEXT, "16b.yml"))
    assert configuration.model is not None
    assert configuration.model.parameters == pytest.approx(15.8e9, rel=0.02)  # published as 16B
    assert (configuration.per_device, configuration.sequence) == (6, 2048)
    document = yaml.safe_load(written(configuration, row(Mesh(fsdp=16, tensor=2)), 32, 512))
    assert (document["ici_fsdp_parallelism"], document["ici_tensor_parallelism"]) == (16, 2)
    assert (document["remat_policy"], document["per_device_batch_size"]) == ("minimal", 16)
    assert document["gradient_accumulation_steps"] == 8


def test_accelerate(tmp_path: Path) -> None:
    configuration = read_configuration(read(tmp_path, ACCELERATE, "config.yaml"))
    document = yaml.safe_load(written(configuration, row(Mesh(data=2, fsdp=8), regather=False), 16, 64))
    assert document["num_processes"] == 16
    assert document["parallelism_config"]["parallelism_config_dp_shard_size"] == 8
    assert document["fsdp_config"] == {
        "fsdp_version": 2, "fsdp_reshard_after_forward": False, "fsdp_activation_checkpointing": True,
    }  # fmt: skip
    with pytest.raises(DataError, match="accelerate has no pipeline axis; plan with --mesh pipeline=1"):
        written(configuration, row(Mesh(pipeline=2)), 2, 64)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a configuration of"):
        read_configuration(read(tmp_path, "steps: 3\n", "other.yml"))


def test_a_plan_writes_the_configuration_again(tmp_path: Path) -> None:
    source, target = read(tmp_path, MAXTEXT, "16b.yml"), tmp_path / "out.yml"
    words = ["plan", "-q", "--config", source, "--target", "v5p:2x2x2", "--global-batch", "64", "--write-config"]
    words += [str(target), "--mesh", "pipeline=1,context=1", "--micro-batch", "1"]
    assert run(words) == 0
    document = yaml.safe_load(target.read_text())
    names = ("data", "fsdp", "tensor")
    sizes = [document[f"ici_{name}_parallelism"] for name in names]
    assert sizes[0] * sizes[1] * sizes[2] == 8


def test_layers_of_stages_in_words() -> None:
    one = row(Mesh(pipeline=4))
    assert stage_layers(replace(one, layers=(8, 8, 8, 8))) == "8 layers in each of 4"
    assert stage_layers(replace(one, layers=(8, 9, 9, 6))) == "8, 9, 9 and 6 layers"
    assert stage_layers(replace(one, layers=(7, *[8] * 14, 7))) == "1 x 7, 14 x 8 and 1 x 7 layers"
