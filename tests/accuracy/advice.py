"""Cases whose first advice is judged: a program or file as a user has it, and the answer that its author needed.

Each is written for this table after a public thread, which ``thread`` names; the tables are `advice_torch.py`,
`advice_jax.py` and `advice_files.py`. `advice_judge.py` runs a case and compares the report with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.accuracy.cases import Framework
from tests.conftest import REPOSITORY

PROGRAMS = Path(__file__).parent / "programs"

RECORDED = frozenset({
    "anomaly_left_on", "bfloat16_weights", "checked_layers", "collect_each_step", "compiled_generate", "ddp_accumulate",
    "ddp_lengths", "generate_concat", "halo_exchange", "handwritten_attention", "jax_eager_diffusion",
    "jax_gathered_constraint", "jax_no_donation", "jax_pipeline", "jax_print_callback", "jax_promoted_to_f32",
    "jax_replicated_work", "jax_weak_state", "large_vocabulary", "lora_merged_each_call", "lora_over_trained_base",
    "masked_entropy", "no_cache", "node_loop", "numpy_doubles", "padded_to_max_length", "prices_in_float16",
    "rank_in_compiled_step", "replay_buffer", "running_metric", "save_often", "shared_trunk", "single_requests",
    "slow_dataset", "static_batches", "torch_draws_weights", "torch_reads_the_disk", "torch_validates_often",
    "validate_with_grad", "varying_lengths",
})  # fmt: skip
"""Programs with a recording in fixtures/advice."""

How = Literal["run", "torchrun", "analyze", "compile"]
Kind = Literal[
    "input", "host", "reads", "compile", "memory", "ops", "inference", "ranks", "sharding", "switches", "numerics",
    "recording", "control",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceCase:
    """The program to run, and the expected first finding. All words are regular expressions without case."""

    name: str
    framework: Framework
    kind: Kind
    thread: str
    """Repository and number of the public thread, or where else the problem is described."""
    program: str
    """A file of `programs`, the name of a recording that `recordings.py` writes, or a path of the repository."""
    how: How = "run"
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Packages without which the case is left out."""
    rules: tuple[str, ...] = ()
    """Rules of which each is the right first finding; in everyday cases it is the first of them. Empty: a control, or
    ``says`` alone is the answer.
    """
    line: tuple[str, ...] = ()
    """Texts of lines, one of which must be named; empty: no line is required."""
    file: str = ""
    """File of ``line``, if it is not the program: a path of the repository."""
    fix: tuple[str, ...] = ()
    """Words of which the finding must have each."""
    says: tuple[str, ...] = ()
    """Words that the first screen must have."""
    true_too: tuple[str, ...] = ()
    """Rules that are right about the program as well: they may be first; a control may have them."""
    forbidden: tuple[str, ...] = ()
    """Words that no finding and no first screen may have."""
    everyday: bool = False
    """Whether the everyday tests run it: files and short programs."""

    @property
    def recorded(self) -> bool:
        """Whether the everyday tests judge a recording of the program (`fixtures/record_advice.py`)."""
        return Path(self.program).stem in RECORDED

    @property
    def title(self) -> str:
        """Its name in all tables."""
        return f"{self.framework} {self.kind}: {self.name}"

    @property
    def is_control(self) -> bool:
        """Whether the program is well written, so that no advice is the right one."""
        return self.kind == "control"

    @property
    def path(self) -> Path | None:
        """The program or file; ``None``: a recording that is still to be written."""
        found = (folder / self.program for folder in (PROGRAMS, REPOSITORY))
        return next((path for path in found if path.exists()), None)

    @property
    def places(self) -> frozenset[tuple[str, int]]:
        """(file name, line) of ``line``. ``ValueError``: the file has no such line."""
        if not self.line:
            return frozenset()
        path = REPOSITORY / self.file if self.file else self.path
        assert path is not None, f"{self.title}: the line of a recording needs its file"
        numbered = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        places = frozenset((path.name, number) for number, text in numbered if any(line in text for line in self.line))
        if not places:
            raise ValueError(f"{self.title}: no line of {path.name} has {self.line!r}")
        return places
