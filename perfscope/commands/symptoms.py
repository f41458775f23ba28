"""Questions in the words of users, and the answer to each: `perfscope explain WORDS`, docs/symptoms.md and docs/faq.md.

Messages name a question of this table (`perfscope.model.errors.see`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct


class Symptom(Struct, frozen=True, kw_only=True):
    """A question of a user and its answer."""

    question: str
    """As a user would type it."""
    look: str
    """The part of the report that shows it, with its meaning; the answer to a question about perfscope."""
    rules: tuple[str, ...] = ()
    """Rules that judge it."""
    command: str
    fix: str = ""
    """The usual remedy."""
    about: Literal["program", "perfscope"] = "program"
    """Questions about perfscope are on the page docs/faq.md, the others on docs/symptoms.md."""

    def lines(self) -> tuple[str, ...]:
        """Return the answer, one line per part."""
        rules = [f"Rules: {', '.join(self.rules)} (`perfscope explain RULE`)"] if self.rules else []
        fix = [f"{'Fix' if self.about == 'program' else 'Also'}: {self.fix}"] if self.fix else []
        first = "Look at" if self.about == "program" else "Answer"
        return (f"{first}: {self.look}", *rules, f"Run: {self.command}", *fix)


SYMPTOMS = (
    Symptom(
        question="My GPU is idle or its utilization is low",
        look="The bar *Where the step goes* names each cause of idle time: waiting for input, launching, other host "
        "work, other ranks, a core. `nvidia-smi` counts a device as busy while any kernel runs; the bar counts "
        "time.",
        rules=("input_stall", "launch_bound", "host_bound", "host_sync", "unexplained_idle"),
        command="perfscope run train.py",
        fix="Fix the first finding: workers for the loader, values read every N steps, a compiled step or a CUDA "
        "graph.",
    ),
    Symptom(
        question="Training got slower over time",
        look="`step_growth` compares the steps of the whole run without a profiler and names the op or line that grew.",
        rules=("step_growth", "memory_leak", "slow_steps"),
        command="perfscope run train.py",
        fix="Detach what is kept between steps (losses, logged tensors), bound caches and lists.",
    ),
    Symptom(
        question="Some steps are much slower than others",
        look="`checkpoint_stall` and `eval_stall` have the time and the lines of saves and evaluations; `slow_steps` "
        "names another call that the slow steps have and the others have not, such as a new epoch.",
        rules=("checkpoint_stall", "eval_stall", "slow_steps", "recompilation", "dynamic_shape_churn"),
        command="perfscope run train.py",
        fix="Keep workers (`persistent_workers=True`), save in another thread, pad inputs to a few sizes.",
    ),
    Symptom(
        question="torch.compile recompiles again and again",
        look="The *Compile* section has each recompilation with the guard that failed and the line of the program.",
        rules=("dynamic_shape_churn", "recompilation", "eager_fallback"),
        command="perfscope run train.py",
        fix="`mark_dynamic` on the size that changes, tensors in place of Python numbers, modules out of the "
        "guarded code.",
    ),
    Symptom(
        question="torch.compile does not make it faster",
        look="Graph breaks and functions that fell back to eager mode, each with its line, and the step's bar: a "
        "compiled graph does not help where the step waits for input or for the host.",
        rules=("graph_break", "eager_fallback", "launch_bound"),
        command="perfscope run train.py",
        fix="Remove the breaks in the order of the report; `perfscope try train.py` measures the compiled step.",
    ),
    Symptom(
        question="JAX's first step is slow, or startup takes minutes",
        look="The *Compile* section splits compile time into tracing, lowering and compiling, by function.",
        rules=("compile_time", "warmup_compile"),
        command="perfscope run train.py",
        fix="`jax.lax.scan` over equal layers, no constants of many MiB in the traced function, a persistent cache "
        "(`jax_compilation_cache_dir`).",
    ),
    Symptom(
        question="JAX compiles in every step",
        look="`recompilation` names the function and what differed: shape, dtype, weak type, sharding, a new "
        "`jax.jit`.",
        rules=("recompilation", "unjitted_step"),
        command="perfscope run train.py",
        fix="Make the jitted function once, outside of the loop; pad to fixed shapes; keep arrays on one sharding.",
    ),
    Symptom(
        question="JAX code runs op by op",
        look="`unjitted_step` counts operations outside of jit and names the function to compile.",
        rules=("unjitted_step", "launch_bound"),
        command="perfscope run train.py",
        fix="`jax.jit` around the whole step, with `donate_argnums` for the state.",
    ),
    Symptom(
        question="CUDA out of memory (OOM)",
        look="The *Memory* section: the peak by category and by line, what the allocator holds unused, what grows.",
        rules=("oom_near", "peak_owner", "memory_fragmentation", "memory_leak", "missing_remat"),
        command="perfscope run --level deep train.py",
        fix="Free the owner of the peak first; `perfscope advise memory` simulates checkpointing policies.",
    ),
    Symptom(
        question="Memory grows until the program dies",
        look="`memory_leak` names the line that allocated what stays, step by step.",
        rules=("memory_leak", "step_growth"),
        command="perfscope run train.py",
        fix="`loss.detach()` before it is kept, clear lists, `zero_grad(set_to_none=True)`.",
    ),
    Symptom(
        question="The data loader is the bottleneck",
        look="`input_stall` has the wait per step, the function of the dataset with most of it, and how busy the "
        "workers are.",
        rules=("input_stall",),
        command="perfscope run train.py",
        fix="Workers while they are busy and cores are left; otherwise a cheaper transform, or data prepared once.",
    ),
    Symptom(
        question="A TPU is input-bound",
        look="In a profile of xprof: *waiting for input* in the bar, and the infeed ops.",
        rules=("input_stall", "host_bound"),
        command="perfscope analyze plugins/profile/RUN",
        fix="Prefetch to the device (`flax.jax_utils.prefetch_to_device`, Grain workers), tokenize once before "
        "training.",
    ),
    Symptom(
        question="Distributed training does not scale (DDP, FSDP are slow)",
        look="*exposed communication* in the bar, then the table of ranks: who came late, and which links are slow.",
        rules=("exposed_communication", "straggler", "small_collectives", "nvlink_stall", "link_contention"),
        command="perfscope run torchrun --nproc-per-node 8 train.py",
        fix="By its cause: the late rank's own work, `no_sync` while accumulating, larger buckets, prefetch of FSDP.",
    ),
    Symptom(
        question="One rank is slower than the others",
        look="`straggler` names the rank and what it does more of; `rank_divergence` names other work.",
        rules=("straggler", "rank_divergence", "expert_imbalance", "context_parallel_imbalance"),
        command="perfscope analyze RUN",
        fix="Balance lengths and experts; look for another program on that machine.",
    ),
    Symptom(
        question="The job hangs in NCCL",
        look="`hung_collective` reads NCCL's flight recorder: which collective, which ranks came, which never did.",
        rules=("hung_collective",),
        command="perfscope analyze nccl_trace_rank_*",
        fix="Start with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1; look at the rank that "
        "is missing.",
    ),
    Symptom(
        question="The loss is NaN",
        look="`nonfinite` names the first op whose output is not finite while its inputs are, with its line.",
        rules=("nonfinite", "unstable_scale", "low_precision_accumulation"),
        command="perfscope run --numerics train.py",
        fix="Compute that op in float32, or clamp its input; lower the loss scale.",
    ),
    Symptom(
        question="Two runs of the same program give different results",
        look="The first op whose results differ although its inputs are equal, or the first input that differs: seed, "
        "data, order, code, library, threads, a checkpoint that was not restored whole.",
        command="perfscope parity RUN RUN",
        fix="Record both with `perfscope run --fingerprint train.py` first; `--tolerance rounding` where the last "
        "digits may differ.",
    ),
    Symptom(
        question="How far from the hardware's peak am I (MFU)?",
        look="*Roofline* and the MFU tile: modelled FLOPs over measured time; kernels by distance from their limit.",
        rules=("full_precision_matmul", "unfused_attention", "unfused_ops"),
        command="perfscope analyze RUN",
        fix="bf16 for products, a fused attention, fusion of the elementwise ops around products.",
    ),
    Symptom(
        question="Attention is slow",
        look="`unfused_attention` finds attention that is written out, in eager, compiled and XLA programs.",
        rules=("unfused_attention", "recomputed_prefix"),
        command="perfscope run train.py",
        fix="`scaled_dot_product_attention`, `flex_attention`, or `jax.nn.dot_product_attention`.",
    ),
    Symptom(
        question="Generation is slow: few tokens per second",
        look="The time per token: launches, reads of values, the cache. `recomputed_prefix`: no cache at all.",
        rules=("launch_bound", "recomputed_prefix", "data_movement", "single_requests", "batch_bubble"),
        command="perfscope run generate.py",
        fix="A static cache with a compiled step or CUDA graphs; no `.item()` per token; requests in batches.",
    ),
    Symptom(
        question="Fine-tuning with LoRA is as slow as training all weights",
        look="`frozen_gradients`: gradients of weights without an optimizer. `constant_work`: adapters that are "
        "multiplied out in each call.",
        rules=("frozen_gradients", "constant_work"),
        command="perfscope run finetune.py",
        fix="`requires_grad_(False)` on the weights below the adapters; the factors applied to the input.",
    ),
    Symptom(
        question="Most of my batch is padding",
        look="`padding_waste` counts the padding of token ids in one step, and the time that the model spends on it.",
        rules=("padding_waste",),
        command="perfscope run train.py",
        fix="Padding to the longest text of the batch, batches of similar lengths, or rows without padding.",
    ),
    Symptom(
        question="Too many small kernels",
        look="`small_kernels` and `launch_bound`: the mean kernel against the price of a launch.",
        rules=("small_kernels", "launch_bound", "unfused_ops", "unfused_optimizer"),
        command="perfscope run train.py",
        fix="`torch.compile`, a fused or foreach optimizer, CUDA graphs, larger batches.",
    ),
    Symptom(
        question="No steps were found",
        look="A step is an optimizer's step, a backward pass of a loop without an optimizer, a call of a jitted or "
        "compiled function or of a model, `perfscope.step()`, `prof.step()`, or a range named like a step. The first "
        "steps are never captured (`--warmup`), so a program needs more than these.",
        command="perfscope run --whole program.py",
        fix="`perfscope.step()` at the end of the loop's body, or `--step-annotation NAME`; `--whole` takes the "
        "program as one step.",
        about="perfscope",
    ),
    Symptom(
        question="Nothing was captured: the program starts other processes, or ended early",
        look="A process is recorded if it imports torch or jax and makes steps. Processes that the program starts "
        "(`mp.spawn`, `subprocess`, pools, launchers) are followed while the program has no steps itself. A process "
        "that another profiler records already, or that ends before the first captured step, leaves nothing.",
        command="perfscope run --follow program.py",
        fix="`--follow` follows all processes, `--warmup 0` captures from step 1, `perfscope doctor` tries the "
        "captures of this machine.",
        about="perfscope",
    ),
    Symptom(
        question="The recording is too large to read, or perfscope has not enough memory",
        look="A trace needs several times its size in memory. Parts can be read alone: ranks before their files are "
        "opened, steps and times before they are judged.",
        command="perfscope analyze --ranks 0-3 --jobs 1 traces/",
        fix="Record fewer steps (`perfscope run --steps 5:8`); docs/limits.md has the sizes that were tried.",
        about="perfscope",
    ),
    Symptom(
        question="What does 'saves up to' mean?",
        look="An upper bound of what the fix takes from a step without a profiler. *measured*: that time was "
        "recorded; *modelled*: computed from sizes and peaks; *structural*: the program shows it, no time is "
        "known.",
        command="perfscope try train.py",
        fix="`try` runs the program with and without the fix, in turns, and measures the saving.",
        about="perfscope",
    ),
    Symptom(
        question="The profiled steps are slower than my training",
        look="Recording slows the host. The step time of a report is that of steps without a profiler, and savings "
        "are scaled to it; the note under the report has the ratio.",
        command="perfscope run --level light train.py",
        fix="`--level light` records only the timing pass.",
        about="perfscope",
    ),
    Symptom(
        question="The numbers change from run to run",
        look="The first line shows whether other programs took cores, and how much steps differ.",
        rules=("slow_steps",),
        command="perfscope compare commits BASE HEAD -- train.py",
        fix="Compare launches in turns, not two runs: their interval includes the noise of the machine.",
        about="perfscope",
    ),
    Symptom(
        question="Did my change make it slower?",
        look="The headline has the difference, its certainty, and the op, line or cause that changed.",
        command="perfscope compare RUN_BEFORE RUN_AFTER",
        fix="`perfscope compare commits` settles it with launches in turns; docs/ci.md puts it on pull requests.",
    ),
    Symptom(
        question="Is my JAX port the same as the PyTorch model?",
        look="`parity` runs both on the same weights and inputs and names the first layer that differs beyond "
        "rounding.",
        command="perfscope parity torch_model.py:model jax_model.py:model",
        fix="The line of that layer; --weights maps the parameters.",
    ),
    Symptom(
        question="Will it fit, and how fast would it be, on hardware that I do not have?",
        look="`compile` compiles the program for the target and models its time and memory, as ranges.",
        rules=("oom_near", "missing_remat"),
        command="perfscope compile --target h100 train.py",
        fix="`perfscope setup h100` installs the compiler once.",
    ),
    Symptom(
        question="I have a trace from Nsight Systems, torch.profiler, xprof or Perfetto",
        look="`analyze` reads them as they are, several ranks together; docs/inputs.md lists the formats.",
        command="perfscope analyze trace.json.gz",
        fix="The report's end names what the recording lacks and the command that records it.",
        about="perfscope",
    ),
    Symptom(
        question="Does perfscope send anything anywhere?",
        look="No. It opens no connection but those that you ask for: a store, a pull request, `setup`, `serve` on "
        "this machine.",
        command="perfscope doctor",
        fix="docs/security.md has what is read, what is scrubbed, and what a run keeps.",
        about="perfscope",
    ),
    Symptom(
        question="What does profiling cost, and does it change my program?",
        look="A few steps are recorded; the others run with a sampler below 1 % of the time. Results are the same to"
        " the bit.",
        command="perfscope run --level light train.py",
        fix="docs/capture.md has the measured cost of each pass.",
        about="perfscope",
    ),
    Symptom(
        question="What do measured, modelled and structural mean?",
        look="The basis of a number. *measured*: from times in the recording; *modelled*: from shapes, bytes and peaks "
        "of the device; *structural*: the program shows the defect and no time is known. *by the critical path*: the "
        "recorded dependencies were played again with the work left out.",
        command="perfscope explain RULE",
        fix="docs/glossary.md has the other words of a report.",
        about="perfscope",
    ),
    Symptom(
        question="Can I add up the savings of several findings?",
        look="No. Each is an upper bound by itself, and two findings may save the same time twice where they overlap.",
        command="perfscope try train.py",
        fix="`try` measures fixes together; otherwise fix the first finding and record again.",
        about="perfscope",
    ),
    Symptom(
        question="Why is a rule not evaluated?",
        look="The recording lacks its input, so the rule is neither flagged nor clean. With `-v` the report names the "
        "missing recording.",
        command="perfscope analyze -v latest",
        fix="`perfscope run` records what most rules need; the reason names the option for the others.",
        about="perfscope",
    ),
    Symptom(
        question="There are no findings, but the program is slow",
        look="*Where the step goes* and *By source line* have the whole step. *Also large* lists each part of a fifth "
        "or more with the reason why it is fine or was not judged. A program at the limit of its hardware has no "
        "finding.",
        command="perfscope analyze -v latest",
        fix="`--what-if 'aten::mm x0.5'` models a change before it is written.",
        about="perfscope",
    ),
    Symptom(
        question="Do I need a GPU, or the machine that ran the program?",
        look="No. Recordings are judged on any machine without torch or jax. Programs are captured where they run, on "
        "a CPU too; rules on host work, input and the program's structure hold there, times of a GPU do not.",
        command="perfscope analyze trace.json.gz",
        about="perfscope",
    ),
    Symptom(
        question="How do I silence a finding that is intended?",
        look="A comment at the line that the finding names: `# perfscope: ignore[host_sync] logged every epoch`. It "
        "needs a reason, and the report lists what is silenced.",
        command="perfscope explain RULE RUN",
        fix="docs/configuration.md has patterns for files, thresholds and gates.",
        about="perfscope",
    ),
    Symptom(
        question="What is kept on disk, and how do I delete it?",
        look="Each run is a folder in `perfscope-runs`: traces, reports and a manifest. Secrets in arguments and home "
        "folders are masked.",
        command="perfscope runs --keep 5",
        fix="`perfscope runs --delete RUN` deletes one.",
        about="perfscope",
    ),
    Symptom(
        question="How do I show a report to a colleague, or on a pull request?",
        look="`report.html` is one file that opens offline. `--format markdown` fits a comment, `--format github` "
        "annotates lines, `--format sarif` is for code scanning.",
        command="perfscope analyze latest -o report.html",
        fix="docs/ci.md has jobs to copy.",
        about="perfscope",
    ),
    Symptom(
        question="Can I use it in a notebook, from Python, in a test or by an agent?",
        look="`with perfscope.profile():` around a loop, `%%perfscope` in a cell, the fixture `perfscope_run` in "
        "pytest, and `perfscope mcp FOLDER` for agents.",
        command="perfscope run notebook.ipynb",
        fix="docs/pytest.md and docs/agents.md have examples.",
        about="perfscope",
    ),
)

_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a all am and are as at be by do does for from has have how i if in is it its me my no not of on or so than "
        "that the to too up what when where which why will with",
    )
)
LEAST = 0.5
"""Share of the words of a question that a symptom must have, counted by their rarity."""


def find_symptoms(words: str, most: int = 3) -> tuple[Symptom, ...]:
    """Return the symptoms that best fit a question in the user's words, best first; empty if none does."""
    stems = _stems(words)
    if not stems:
        return ()
    known = [(symptom, _stems(symptom.question), _stems(" ".join((symptom.look, symptom.fix)))) for symptom in SYMPTOMS]
    weight = {word: 1 / (1 + sum(word in first | rest for _, first, rest in known)) for word in stems}
    whole = sum(weight.values())

    def fit(first: set[str], rest: set[str]) -> float:
        return sum(weight[word] * (1.0 if word in first else 0.4) for word in stems & (first | rest)) / whole

    scored = [(fit(first, rest), symptom) for symptom, first, rest in known]
    best = max(score for score, _ in scored)
    ordered = sorted(scored, key=lambda item: -item[0])
    return tuple(symptom for score, symptom in ordered[:most] if score >= max(LEAST * best, LEAST / 2))


def is_question_word(word: str) -> bool:
    """Whether a known question has this word."""
    return any(_stems(word) & _stems(symptom.question) for symptom in SYMPTOMS)


def _stems(text: str) -> set[str]:
    words: Sequence[str] = re.findall(r"[a-z0-9]+", text.lower())
    return {re.sub(r"(ing|es|ed|s|e)$", "", word) or word for word in words if word not in _COMMON}
