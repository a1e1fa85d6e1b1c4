"""The compile stage: `ExecutionPlan` -> prepared steps."""

from penstock.compilation.compilation import (
    FALLBACK_DEVICE,
    Compilation,
    Means,
    PreparedStep,
    compile_plan,
)
from penstock.compilation.receipt import CACHE_OFF, CacheOutcome, CopyReceipt, Receipt, StepReceipt

__all__ = [
    "CACHE_OFF",
    "FALLBACK_DEVICE",
    "CacheOutcome",
    "Compilation",
    "CopyReceipt",
    "Means",
    "PreparedStep",
    "Receipt",
    "StepReceipt",
    "compile_plan",
]
