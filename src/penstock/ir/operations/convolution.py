"""Rows of convolutions and pooling."""

from __future__ import annotations

from typing import Final

from penstock.ir.operations.spec import OperationSpec

ROWS: Final[tuple[OperationSpec, ...]] = ()
