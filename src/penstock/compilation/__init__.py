"""The compile stage: `ExecutionPlan` -> prepared steps."""

from penstock.compilation.compilation import (
    FALLBACK_DEVICE,
    Compilation,
    Means,
    PreparedStep,
    compile_plan,
)
from penstock.compilation.receipt import (
    CACHE_OFF,
    CacheOutcome,
    CopyReceipt,
    Failure,
    KernelReceipt,
    Receipt,
    Span,
    StepReceipt,
)

__all__ = [
    "CACHE_OFF",
    "FALLBACK_DEVICE",
    "CacheOutcome",
    "Compilation",
    "CopyReceipt",
    "Failure",
    "KernelReceipt",
    "Means",
    "PreparedStep",
    "Receipt",
    "Span",
    "StepReceipt",
    "compile_plan",
]
