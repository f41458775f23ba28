"""Configurations of torchtitan, MaxText and accelerate: read for a plan, and written back with its mesh.

A file is read line by line, and only the keys in the tables below are understood; everything else of it, comments
too, is kept when it is written.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Literal

from msgspec import Struct

from perfscope.model.errors import DataError
from perfscope.plugins.plan.decoder import Decoder
from perfscope.plugins.plan.document import PlannedCandidate

Kind = Literal["torchtitan", "maxtext", "accelerate"]

MOST_BYTES = 1 << 20

_LINE = re.compile(r"^(\s*)([A-Za-z_]\w*)(\s*[:=]\s*)([^#\n]*?)(\s*(?:#.*)?)$")

_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
_AC_MODE = {"none": "none", "dots": "selective", "full": "full"}
_REMAT = {"none": "minimal", "dots": "minimal", "full": "full"}
"""MaxText keeps products at most: its name for that is minimal."""


class Configuration(Struct, frozen=True, kw_only=True):
    """A configuration file."""

    kind: Kind
    path: str
    text: str
    model: Decoder | None = None
    """MaxText: the model itself."""
    missing: tuple[str, ...] = ()
    """MaxText: keys of the model that the file and its base lack."""
    sequence: int | None = None
    per_device: int | None = None
    """Sequences of one device, for a global batch."""
    global_batch: int | None = None


def read_configuration(path: str) -> Configuration:
    """Read a file. ``DataError`` in one line if it is of none of the three."""
    text = _text(path)
    values = _values(text)
    if re.search(r"^\s*\[(?:parallelism|training)\]", text, re.MULTILINE):
        return _torchtitan(path, text)
    if "base_emb_dim" in values or any(key.startswith("ici_") for key in values):
        base = Path(path).parent / values["base_config"] if values.get("base_config") else None
        inherited = _values(_text(str(base))) if base is not None and base.is_file() else {}
        return _maxtext(path, text, {**inherited, **values})
    if "distributed_type" in values or "compute_environment" in values:
        return Configuration(kind="accelerate", path=path, text=text)
    raise DataError(f"--config {path}: not a configuration of torchtitan (.toml), MaxText or accelerate (.yml)")


def _text(path: str) -> str:
    try:
        data = Path(path).read_bytes()[: MOST_BYTES + 1]
        text = data.decode("utf-8")
    except OSError as error:
        raise DataError(f"--config {path}: {(error.strerror or 'cannot be read').lower()}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"--config {path}: not text") from error
    if len(data) > MOST_BYTES:
        raise DataError(f"--config {path}: larger than {MOST_BYTES >> 20} MiB")
    return text


def _values(text: str) -> dict[str, str]:
    """Key -> value of all lines, at any depth; the last one counts."""
    found = (_LINE.match(line) for line in text.splitlines())
    return {match[2]: match[4].strip().strip("'\"") for match in found if match is not None}


def _whole(values: dict[str, str], key: str, default: int | None = None) -> int | None:
    text = values.get(key, "").replace("_", "")
    return int(float(text)) if re.fullmatch(r"\d+(?:\.0+)?", text) else default


def _torchtitan(path: str, text: str) -> Configuration:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"--config {path}: invalid TOML: {str(error)[:120]}") from error
    training = document.get("training", {})
    training = training if isinstance(training, dict) else {}
    sizes = {key: value for key in ("seq_len", "local_batch_size", "batch_size", "global_batch_size")
             if type(value := training.get(key)) is int and value > 0}  # fmt: skip
    return Configuration(
        kind="torchtitan", path=path, text=text, sequence=sizes.get("seq_len"),
        per_device=sizes.get("local_batch_size", sizes.get("batch_size")), global_batch=sizes.get("global_batch_size"),
    )  # fmt: skip


def _maxtext(path: str, text: str, values: dict[str, str]) -> Configuration:
    """MaxText multiplies its base sizes: a scale of 8 doubles heads and features, the width, and the layers."""
    names = {"layers": "base_num_decoder_layers", "hidden": "base_emb_dim", "heads": "base_num_query_heads",
             "kv_heads": "base_num_kv_heads", "ffn": "base_mlp_dim"}  # fmt: skip
    sizes = {name: _whole(values, key) for name, key in names.items()}
    head, vocab = _whole(values, "head_dim", 128), _whole(values, "vocab_size")
    model = None
    if vocab and head and all(sizes.values()):
        power, rest = divmod((_whole(values, "global_parameter_scale", 1) or 1).bit_length() - 1, 3)
        wide, deep = 1 << (power + (rest > 0)), 1 << power
        experts = _whole(values, "num_experts", 1) or 1
        known = {name: size or 0 for name, size in sizes.items()}
        model = Decoder(
            name=Path(path).stem, layers=known["layers"] * deep, hidden=known["hidden"] << (power + (rest > 1)),
            heads=known["heads"] * wide, kv_heads=known["kv_heads"] * wide, head_dim=head, ffn=known["ffn"] * wide,
            vocab=vocab, experts=experts if experts > 1 else 0,
            experts_per_token=(_whole(values, "num_experts_per_tok", 1) or 1) if experts > 1 else 0,
            expert_ffn=known["ffn"] * wide if experts > 1 else 0,
        )  # fmt: skip
    missing = [names[name] for name, size in sizes.items() if not size] + ([] if vocab else ["vocab_size"])
    return Configuration(
        kind="maxtext", path=path, text=text, model=model, missing=tuple(missing),
        sequence=_whole(values, "max_target_length"), per_device=_whole(values, "per_device_batch_size"),
    )  # fmt: skip


def written(configuration: Configuration, row: PlannedCandidate, devices: int, global_batch: int) -> str:
    """The same file with the mesh and the batch of a candidate. ``DataError`` if its framework has no key for them."""
    candidate, mesh = row.candidate, row.candidate.mesh
    if configuration.kind == "torchtitan":
        return _with_toml(configuration.text, _titan_keys(row, global_batch))
    if configuration.kind == "maxtext":
        keys = {
            "ici_data_parallelism": mesh.data, "ici_fsdp_parallelism": mesh.fsdp, "ici_expert_parallelism": mesh.expert,
            "ici_context_parallelism": mesh.context, "ici_tensor_parallelism": mesh.tensor,
            "ici_pipeline_parallelism": mesh.pipeline, "remat_policy": _REMAT.get(candidate.policy, "full"),
            "per_device_batch_size": f"{global_batch / devices:g}",
            **({"num_pipeline_microbatches": row.micro_batches} if mesh.pipeline > 1
               else {"gradient_accumulation_steps": row.micro_batches}),
        }  # fmt: skip
        return _with_lines(configuration.text, {key: str(value) for key, value in keys.items()})
    if mesh.pipeline > 1 or mesh.expert > 1:
        axis = "pipeline" if mesh.pipeline > 1 else "expert"
        raise DataError(f"--write-config: accelerate has no {axis} axis; plan with --mesh {axis}=1")
    sizes = {"dp_replicate": mesh.data, "dp_shard": mesh.fsdp, "cp": mesh.context, "tp": mesh.tensor}
    text = _with_lines(
        configuration.text,
        {f"parallelism_config_{name}_size": str(size) for name, size in sizes.items()},
        section="parallelism_config",
    )
    fsdp = {
        "fsdp_activation_checkpointing": str(candidate.policy != "none").lower(),
        "fsdp_reshard_after_forward": str(candidate.regather).lower(),
    }
    text = _with_lines(text, fsdp, section="fsdp_config")
    return _with_lines(text, {"num_processes": str(devices), "gradient_accumulation_steps": str(row.micro_batches)})


def _titan_keys(row: PlannedCandidate, global_batch: int) -> dict[str, dict[str, str]]:
    """Keys by table. torchtitan takes the devices of its expert axis from those of data and context."""
    candidate, mesh = row.candidate, row.candidate.mesh
    parallelism = {
        "data_parallel_replicate_degree": mesh.data, "data_parallel_shard_degree": mesh.fsdp * mesh.expert,
        "fsdp_reshard_after_forward": '"always"' if candidate.regather else '"never"',
        "tensor_parallel_degree": mesh.tensor, "pipeline_parallel_degree": mesh.pipeline,
        "context_parallel_degree": mesh.context, "expert_parallel_degree": mesh.expert,
    }  # fmt: skip
    local = candidate.micro_batch
    if mesh.pipeline > 1:
        name = _SCHEDULES.get(candidate.schedule)
        if name is None:
            raise DataError(
                f"--write-config: torchtitan has no schedule like {candidate.schedule}; plan with --schedule 1f1b"
            )
        local *= row.micro_batches
        parallelism |= {
            "pipeline_parallel_schedule": f'"{name}"', "pipeline_parallel_microbatch_size": candidate.micro_batch,
        }  # fmt: skip
    return {
        "training": {"local_batch_size": str(local), "global_batch_size": str(global_batch)},
        "parallelism": {key: str(value) for key, value in parallelism.items()},
        "activation_checkpoint": {"mode": f'"{_AC_MODE.get(candidate.policy, "full")}"'},
    }


def _with_toml(text: str, tables: dict[str, dict[str, str]]) -> str:
    """TOML with these keys: in place where they are, else at the end of their table."""
    lines, table, left = list[str](), "", {name: dict(keys) for name, keys in tables.items()}

    def rest() -> None:
        keys = left.pop(table, {})
        at = len(lines)
        while at and not lines[at - 1].strip():
            at -= 1
        lines[at:at] = [f"{key} = {value}" for key, value in keys.items()]

    for line in text.splitlines():
        header = re.match(r"^\s*\[([^\[\]]+)\]\s*(?:#.*)?$", line)
        if header is not None:
            rest()
            table = header[1].strip()
        match = _LINE.match(line)
        if header is None and match is not None and match[2] in left.get(table, {}):
            line = f"{match[1]}{match[2]}{match[3]}{left[table].pop(match[2])}{match[5]}"
        lines.append(line)
    rest()
    for name in list(left):
        table = name
        lines += ["", f"[{name}]"]
        rest()
    return "\n".join(lines) + "\n"


def _with_lines(text: str, keys: dict[str, str], section: str | None = None) -> str:
    """YAML with these keys: in place where they are, else in their section, else at the end of the file."""
    left, lines = dict(keys), list[str]()
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None and match[2] in left:
            line = f"{match[1]}{match[2]}{match[3]}{left.pop(match[2])}{match[5]}"
        lines.append(line)
    indent = "" if section is None else "  "
    added = [f"{indent}{key}: {value}" for key, value in left.items()]
    if section is None or not added:
        return "\n".join([*lines, *added]) + "\n"
    at = next((number for number, line in enumerate(lines) if re.fullmatch(rf"{section}:\s*(?:\{{\}})?", line)), None)
    if at is None:
        return "\n".join([*lines, f"{section}:", *added]) + "\n"
    return "\n".join([*lines[:at], f"{section}:", *added, *lines[at + 1 :]]) + "\n"
