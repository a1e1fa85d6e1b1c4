"""Test kits for driver authors: contract suites, doubles, strategies. Versioned with the HAL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

from penstock.errors import InputError
from penstock.memory.copies import CopyReceipt, watched_copies

__all__ = ["assert_no_copies"]


@contextmanager
def assert_no_copies(allowed_bytes: int = 0) -> Iterator[list[CopyReceipt]]:
    """Fails the block if the runtime copies more than *allowed_bytes* of tensor data in it.

    Copies of every thread count. Raises `AssertionError` at the end of the block; the message lists
    every copy with its reason. The block receives the list of copies so far. Raises `InputError`
    unless *allowed_bytes* is a whole number of at least 0.
    """
    whole = isinstance(allowed_bytes, Integral) and not isinstance(allowed_bytes, bool)
    if not whole or allowed_bytes < 0:
        raise InputError(
            f"allowed_bytes is a whole number of bytes, 0 or more, not {allowed_bytes!r}"
        )
    copies: list[CopyReceipt] = []
    with watched_copies(copies.append):
        yield copies
    total = sum(copy.nbytes for copy in copies)
    if total > allowed_bytes:
        lines = [f"{c.nbytes} bytes, {c.source} -> {c.destination}: {c.reason}" for c in copies]
        raise AssertionError(
            "\n  ".join([f"{total} bytes were copied; {allowed_bytes} are allowed", *lines])
        )
