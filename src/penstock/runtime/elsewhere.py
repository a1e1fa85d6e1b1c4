"""What a compile does beside where drivers of its devices live in other processes: these may be
gone, late, or copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.execution.absence import absence_of, refuse_absent
from penstock.ipc.constants import sealed_copies
from penstock.ipc.until import gathering, until
from penstock.runtime.isolation import waiting_half

if TYPE_CHECKING:
    from penstock.compilation.prepared import Compilation
    from penstock.execution.absence import Absence
    from penstock.hal import Device
    from penstock.ir import Model
    from penstock.partitioning.plan import ExecutionPlan


class Elsewhere:
    """One compile of *model*, from its begin on."""

    def __init__(self, model: Model, deadline_ns: int | None) -> None:
        self._model, self._deadline_ns = model, deadline_ns
        self._before = sealed_copies(model.pools)
        self._restarts: dict[str, str] = {}

    @contextmanager
    def placing(self) -> Iterator[None]:
        """A block in which devices are asked until half of the time to the deadline is gone."""
        with waiting_half(self._deadline_ns), gathering(self._restarts):
            yield

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """A block in which they are asked until the deadline."""
        with until(self._deadline_ns), gathering(self._restarts):
            yield

    def check(self, plan: ExecutionPlan) -> None:
        """Raises `PlacementError` where *plan*, which nothing may fall back from, had to do without
        a device.
        """
        refuse_absent(plan)

    def told(
        self, compilation: Compilation, devices: Mapping[str, Device]
    ) -> tuple[Compilation, Absence | None]:
        """*compilation* with receipts that name the devices that were not there, those whose
        process was started again, and what was copied for the others; and whom to wait for, if
        anybody.
        """
        compilation, absence = absence_of(compilation, devices)
        made = sealed_copies(self._model.pools)
        copies = tuple(copy for at, copy in made.items() if at not in self._before)
        notes = [
            f"device {name}: its driver's process {ended}; it was started again for the compile"
            for name, ended in self._restarts.items()
        ]
        receipt = compilation.receipt
        receipt = replace(receipt, copies=copies, notes=(*receipt.notes, *notes))
        return replace(compilation, receipt=receipt), absence
