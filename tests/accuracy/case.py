"""A labelled case: a program or recording with a known defect, and its twin without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Framework = Literal["torch", "jax"]
Mode = Literal["eager", "compiled", "jit", "4 gloo processes", "8 devices", "H100", "v5e", "GPU trace", "TPU trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A workload that is run here. ``processes``: ranks that torchrun starts; ``devices``: virtual ones of JAX."""

    module: str
    arguments: tuple[str, ...] = ()
    level: str = "default"
    processes: int = 1
    devices: int = 1

    @property
    def key(self) -> str:
        """The command, short; also the name of the run."""
        return " ".join((self.module, *self.arguments, *(() if self.level == "default" else (f"({self.level})",))))

    @property
    def command(self) -> str:
        """What a user types."""
        level = () if self.level == "default" else ("--level", self.level)
        ranks = () if self.processes == 1 else ("torchrun", "--standalone", "--nproc-per-node", str(self.processes))
        return " ".join(("perfscope run", *level, *ranks, "-m", self.module, *self.arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Files of this repository, or of the corpus (``corpus/...``), analysed together."""

    paths: tuple[str, ...]

    @property
    def key(self) -> str:
        """The first path, and how many more there are."""
        return self.paths[0] + (f" and {len(self.paths) - 1} more" if self.paths[1:] else "")


Source = Program | Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A defect, or with nothing in ``expects`` a program that looks like one and is clean."""

    name: str
    framework: Framework
    mode: Mode
    source: Source
    twin: Source | None = None
    expects: Mapping[str, str | None] = field(default_factory=dict)
    """Rule -> text of the labelled line, ``None`` where the recording has no lines of a program."""
    needs: tuple[str, ...] = ()
    """Packages of the extra `workloads` without which it cannot run."""
    measured: bool = False
    """Whether the saving is measured by pairs of the defect and its twin."""
    story: str = ""
    """For a recording by others: its content, with the source of that statement."""
    clean: tuple[str, ...] = ()
    """For a recording by others: rules that are agreed to find nothing in it. Its other content is not labelled, so
    that no other rule counts as a false alarm."""

    @property
    def title(self) -> str:
        """Its name in all tables."""
        return f"{self.framework} {self.mode}: {self.name}"


def torch_program(
    workload: str, *arguments: str, size: str = "tiny", steps: int = 24, level: str = "default"
) -> Program:
    """A PyTorch workload."""
    return Program(
        module=f"perfscope.workloads.{workload}",
        arguments=("--size", size, "--steps", str(steps), *arguments),
        level=level,
    )


def jax_program(workload: str, *arguments: str, size: str = "tiny", steps: int = 24, devices: int = 1) -> Program:
    """A JAX workload."""
    return Program(
        module=f"perfscope.workloads.jax.{workload}",
        arguments=("--size", size, "--steps", str(steps), *arguments),
        devices=devices,
    )
