"""What a child made by `fork` does, told to its parent."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from typing import Any, Final

PATIENCE: Final = 60.0
"""Seconds that a child may take."""


def in_child(work: Callable[[], Any]) -> Any:
    """What *work* returns in a child made by `fork`. Raises `AssertionError` with what it raised
    there, and where the child ends, or takes too long, without an answer.
    """
    # The child is not to close engines that tests before have left: their threads are not in it.
    gc.collect()
    gc.freeze()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def tell() -> None:
        try:
            told = work(), ""
        except BaseException:  # noqa: BLE001  # the parent raises it
            told = None, traceback.format_exc()
        theirs.send(told)

    child = context.Process(target=tell)
    with ours, tempfile.TemporaryFile("w+") as said:
        # What the child says outside of *work* would be lost with the captured stream.
        with contextlib.redirect_stderr(said):
            child.start()
        theirs.close()
        if not ours.poll(PATIENCE):
            child.kill()
            raise AssertionError(f"the child gave no answer within {PATIENCE:.0f} s")
        try:
            found, error = ours.recv()
        except EOFError:
            child.join(PATIENCE)
            said.seek(0)
            raise AssertionError(f"the child ended with {child.exitcode}: {said.read()}") from None
    child.join(PATIENCE)
    assert not error, error
    assert child.exitcode == 0
    return found
