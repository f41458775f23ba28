"""The request to the child process: plain data in a JSON file, independent of the command's modules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from perfscope.model.documents.compile_manifest import CompiledTarget
from perfscope.model.errors import DataError, UsageError

Framework = Literal["jax", "torch"]


class TargetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine to compile for, resolved: nothing here has to be looked up in a table."""

    machine: CompiledTarget
    """As the manifest names it."""
    vendor: str
    """``NVIDIA``, ``AMD`` or ``Google``."""
    config: str | None = None
    """XLA's target config of the GPU as text; TPU compilers bring their own."""
    generation: str | None = None
    """libtpu's name of the TPU: ``v5e``."""
    host_shape: tuple[int, ...] | None = None
    """TPUs: chips of one host along x, y and z; None for libtpu's own, 2 x 2."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where it ends."""

    seconds: float
    """For the whole command."""
    memory_bytes: int
    """Resident memory of the child and what it started."""


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The program to compile or plan, and its target."""

    framework: Framework
    arguments: tuple[str, ...]
    """Script or module, and all arguments after it."""
    module: bool
    target: TargetRequest
    limits: Limits
    folder: str = ""
    """The run folder, absolute; the child writes below ``programs`` and ``plans`` only. Set by `compile_program`."""
    functions: tuple[str, ...] = ()
    """Only these: ``step``, ``train.step`` or ``train.py:step``; empty for all that is jitted."""
    until_exit: bool = False
    """Let the program run to its end, however often it calls the same."""
    checkpoint: str | None = None
    """JAX: the policy for the program's layers; None: the program's own."""
    keep_ptx: bool = False
    environment: dict[str, str] = {}
    """Variables that the program finds besides those of this process: its mesh."""
    plugins: tuple[str, ...] = ()
    """Folders that hold compiler plugins, in order; found by the parent."""
    skipped: tuple[int, ...] = ()
    """Programs that an earlier child finished with, compiled or not: numbers in the order they were seen."""
    rank: int = 0
    """PyTorch on several devices: the process to plan."""
    exchange: str = ""
    """Folder for objects that the stages of a pipeline send one another. Set by `compile_program`."""
    exported: str | None = None
    """A file with a program that was exported beforehand (`compile_for`, StableHLO, HLO, jax.export, torch.export),
    instead of a program of the user's to run."""


def dump(request: Request) -> bytes:
    """A request as UTF-8 JSON."""
    return msgspec.json.encode(request)


def load(path: Path) -> Request:
    """Read the request in a file; ``DataError`` if it is invalid."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Request)
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a request to compile ({error})") from error


# The meaning of ``--checkpoint POLICY[@FILE:LINE]``: the policy for the layers of a program, and these layers.


PolicyName = Literal["none", "full", "dots", "all_dots", "names"]
POLICIES: dict[PolicyName, str] = {
    "none": "no checkpoint: everything that the backward needs stays",
    "full": "jax.checkpoint without a policy: a layer's input stays, the rest is made again",
    "dots": "dots_with_no_batch_dims_saveable: products of activations with weights stay",
    "all_dots": "dots_saveable: all products and convolutions stay",
    "names": "save_only_these_names: what the program names (checkpoint_name) stays; names:a+b for some of them",
}
"""Policies as written on the command line; `perfscope advise memory` uses *selectively* for ``dots``."""

JAX_POLICY_NAMES: dict[str, PolicyName] = {
    "nothing_saveable": "full",
    "dots_with_no_batch_dims_saveable": "dots",
    "checkpoint_dots_with_no_batch_dims": "dots",
    "dots_saveable": "all_dots",
    "checkpoint_dots": "all_dots",
}
"""Names of ``jax.checkpoint_policies`` that are understood as well."""

MAX_CHECKPOINT_OPTION = 400


class Spot(Struct, frozen=True, kw_only=True):
    """A line that was named."""

    file: str
    """End of a path: ``train.py``, ``project/train.py``."""
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def is_at(self, file: str, line: int) -> bool:
        """Whether a place is this one: the file ends with ours, at a folder's boundary."""
        return line == self.line and (file == self.file or file.endswith(f"/{self.file}"))


class CheckpointRequest(Struct, frozen=True, kw_only=True):
    """One value of the option."""

    word: PolicyName
    names: tuple[str, ...] = ()
    """Names of ``names:a+b``; empty for all names in the program."""
    spots: tuple[Spot, ...] = ()
    """Only the code at these lines; empty for the layers, as they are found."""

    def __str__(self) -> str:
        named = f":{'+'.join(self.names)}" if self.names else ""
        return f"{self.word}{named}" + "".join(f"@{spot}" for spot in self.spots)


def parse_checkpoint(text: str, *, option: str = "--checkpoint") -> CheckpointRequest:
    """``full``, ``dots@train.py:35``, ``names:qkv+hidden``; ``UsageError`` in one line.

    ``option``: as which it was written.
    """
    if len(text) > MAX_CHECKPOINT_OPTION or not text.isprintable():
        raise UsageError(f"{option} {text[:60]!r}: write a policy, e.g. full or dots@train.py:35")
    head, *parts = text.strip().split("@")
    sentence, colon, rest = head.partition(":")
    word = JAX_POLICY_NAMES.get(sentence, sentence)
    if word not in POLICIES:
        raise UsageError(f"{option} {sentence[:60]}: no such policy; there are {', '.join(POLICIES)}")
    names = tuple(rest.split("+")) if colon else ()
    if colon and (word != "names" or not all(names)):
        raise UsageError(f"{option} {head[:60]}: names go with the policy names: names:qkv+hidden")
    spots = []
    for label in parts:
        match = re.fullmatch(r"(?:\./)?([^:@]{1,200}):(\d{1,7})", label)
        if match is None:
            raise UsageError(f"{option} {text[:60]}: invalid line {label[:40]!r}; write {sentence}@train.py:35")
        spots.append(Spot(file=match[1], line=int(match[2])))
    return CheckpointRequest(word=word, names=names, spots=tuple(spots))
