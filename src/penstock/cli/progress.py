"""A bar while drivers compile, on a terminal only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.cli.output import Output

if TYPE_CHECKING:
    from penstock.hal import ProgressCallback, ProgressEvent

STAGES: Final = {
    "compile": "compiling on",
    "tune": "measuring",
    "lease": "compiling, or waiting for the process that compiles, on",
}
"""Stages in words; one that a driver makes up is shown under its own name."""


@contextmanager
def compile_bar(output: Output, name: str = "") -> Iterator[ProgressCallback | None]:
    """What to give to `penstock.compile(progress=...)`; None where no bar can be seen.

    *name* stands in front where several models are compiled one after another.
    """
    bar = output.progress()
    if bar.disable:
        yield None
        return
    with bar:
        task = bar.add_task(f"{name} compiling".strip(), total=None)

        def show(event: ProgressEvent) -> None:
            bar.update(
                task,
                description=f"{name} {words(event)}".strip(),
                completed=event.done,
                total=event.total or None,
            )

        yield show


def words(event: ProgressEvent) -> str:
    """What is going on."""
    stage = STAGES.get(event.stage, event.stage)
    return f"{stage} {event.subject}" if event.subject else stage.removesuffix(" on")
