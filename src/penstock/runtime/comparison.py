"""`compare`: a device against the reference, down to the first operation whose result departs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.distribution import FALLBACK_DEVICE
from penstock.errors import InputError
from penstock.execution.state import State
from penstock.hal import AccuracyClass, Device
from penstock.ir import Model, infer_shapes
from penstock.runtime.bisection import Search
from penstock.runtime.departures import Comparison, Departure, case_arrays
from penstock.runtime.discovery import DeviceInfo, manager
from penstock.runtime.operations import arrays_of

__all__ = ["Comparison", "Departure", "case_arrays", "compare"]


def compare(
    model: Model,
    inputs: Mapping[str, Any] | Sequence[Any],
    device: str | DeviceInfo | Device,
    against: str | DeviceInfo | Device = FALLBACK_DEVICE,
    *,
    accuracy: AccuracyClass = "faithful",
    state: State | None = None,
    timeout: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """The first operation of *model* whose result on *device* departs from that on *against*.

    *inputs* are those of `CompiledModel.run`, and *device* is asked what it supports for their
    shapes; variables start at their initial values, or at those of *state*, which gets the new
    ones. *against* computes what it supports, the reference device the rest. An operation with
    subgraphs (IF, WHILE) counts as one. What the device does not support, or not in the class
    *accuracy*, is not compared. *timeout*, in seconds, is each run's deadline. *progress* is told
    each part that is tried.

    All values of one run are held in memory at once. Raises `InputError` for inputs that do not
    fit, `ShapeMismatch` where their shapes do not fit each other, `PlacementError` for a device
    that is unknown or cannot be used, and whatever *against* raises.
    """
    (candidate,) = manager.choose([device])
    (judge,) = manager.choose([against])
    if candidate.name == judge.name:
        raise InputError(f"{candidate.name} would be compared with itself")
    arrays = arrays_of(model, inputs)
    model = infer_shapes(model, {at: array.shape for at, array in enumerate(arrays)})
    search = Search(model, candidate, accuracy, timeout, progress)
    search.record(arrays, judge, state)
    outputs, failed = search.whole()
    departure = search.first()
    if departure is None and (failed is not None or outputs.departs):
        departure = search.together() or failed
    return Comparison(
        candidate.name,
        judge.name,
        accuracy,
        len(model.operations),
        len(search.supported),
        search.refused,
        outputs,
        departure,
        search.runs,
    )
