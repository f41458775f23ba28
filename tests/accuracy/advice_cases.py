"""All cases of first advice."""

from __future__ import annotations

from tests.accuracy.advice import AdviceCase
from tests.accuracy.advice_files import FILES
from tests.accuracy.advice_jax import JAX
from tests.accuracy.advice_torch import TORCH

ADVICE: tuple[AdviceCase, ...] = (*TORCH, *JAX, *FILES)
