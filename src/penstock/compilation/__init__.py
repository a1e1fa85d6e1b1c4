"""The compile stage: `ExecutionPlan` -> prepared steps."""

from penstock.compilation.compilation import compile_plan
from penstock.compilation.prepared import Compilation, CompileOptions, PreparedStep
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
    "CompileOptions",
    "CopyReceipt",
    "Failure",
    "KernelReceipt",
    "PreparedStep",
    "Receipt",
    "Span",
    "StepReceipt",
    "compile_plan",
]
