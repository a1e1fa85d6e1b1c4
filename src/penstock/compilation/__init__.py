"""The compile stage: `ExecutionPlan` -> prepared steps."""

from penstock.compilation.compilation import (
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
