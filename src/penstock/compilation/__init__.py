"""The compile stage: `ExecutionPlan` -> prepared steps."""

from penstock.compilation.compilation import compile_plan
from penstock.compilation.prepared import Compilation, CompileOptions, PreparedStep
from penstock.compilation.receipt import Receipt
from penstock.compilation.step_receipt import (
    CACHE_OFF,
    CacheOutcome,
    Failure,
    KernelReceipt,
    Span,
    StepReceipt,
)
from penstock.memory.copies import CopyReceipt

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
