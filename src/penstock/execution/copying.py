"""Copies that the runtime makes by itself, each with its receipt."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

from penstock.compilation.receipt import CopyReceipt
from penstock.ir import NDArray


def copied(
    value: NDArray,
    copies: list[CopyReceipt],
    route: tuple[str, str],
    reason: str,
    *,
    step: int | None = None,
    operand: int | None = None,
) -> NDArray:
    """*value* in memory of its own; *route* says from where to where, for the receipt that is added to *copies*."""
    began = perf_counter_ns()
    kept = np.array(value)
    spent = perf_counter_ns() - began
    copies.append(CopyReceipt(value.nbytes, *route, reason, step, operand, began, spent))
    return kept


def copy_over(
    target: NDArray,
    value: NDArray,
    copies: list[CopyReceipt],
    route: tuple[str, str],
    reason: str,
    *,
    step: int | None = None,
    operand: int | None = None,
) -> None:
    """Copies *value* over *target*, likewise."""
    began = perf_counter_ns()
    np.copyto(target, value)
    spent = perf_counter_ns() - began
    copies.append(CopyReceipt(value.nbytes, *route, reason, step, operand, began, spent))
