"""Rows of operations that only move or describe data."""

from __future__ import annotations

from typing import Final

from penstock.ir.operations.spec import OperationSpec

ROWS: Final[tuple[OperationSpec, ...]] = ()
