"""The costs of engines that are known: measured on this machine, or as shipped."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from penstock.cache.ingredients import calibration_key
from penstock.cache.verdicts import Calibration, Calibrations
from penstock.distribution import DISTRIBUTION, origin_of
from penstock.driverkit.installation import processor_features
from penstock.errors import CacheError
from penstock.hal import AccuracyClass, Device
from penstock.logs import Log
from penstock.partitioning.costs import Costs, EngineCosts, Features
from penstock.partitioning.plan import SHIPPED_COSTS

log = Log(__name__)

SHIPPED: Final = "shipped.json"
SHIPPED_TIMES: Final = "shipped_times.json"
MEASURED_SOURCE: Final = "measurements of this machine"

DOT_PRODUCTS: Final = "int8 dot products"
NO_DOT_PRODUCTS: Final = "no int8 dot products"
"""The two sorts of processors that have shipped tables: nothing else about a processor changes the
proportions of costs as much as instructions that sum products of int8.
"""

DOT_FEATURES: Final = frozenset({"avx512_vnni", "avx_vnni", "avx512_icl", "asimddp"})
"""Features with such instructions, in the words of Linux and of NumPy."""

SHIPPED_ERROR: Final = 1.8
"""Factor within which nine of ten predictions are assumed to lie on another machine."""

ANY_CLASS: Final = "any"
"""The class of a shipped table that holds for every class without one of its own."""

MODES: Final[dict[AccuracyClass, AccuracyClass]] = {
    "exact": "exact", "faithful": "stepwise", "stepwise": "stepwise", "relaxed": "relaxed",
}  # fmt: skip
"""For each class that a policy asks for, the class in which engines are measured.

`faithful` and `stepwise` differ in which operations a device may run, not in how it runs them.
"""


_Times: TypeAlias = dict[str, dict[str, dict[str, dict[str, float]]]]


class Table(Struct, frozen=True):
    """A shipped table; see `EngineCosts`."""

    step_ns: float
    edge_ns: float
    cells: dict[str, Features]
    together: dict[str, float]
    overhead: dict[str, float]

    @property
    def costs(self) -> EngineCosts:
        """The costs, which are of another machine."""
        parts = self.cells, self.together, self.overhead, self.step_ns, self.edge_ns
        return EngineCosts(*parts, SHIPPED_ERROR, SHIPPED_COSTS)


def costs_for(
    devices: Sequence[Device], accuracy: AccuracyClass, num_threads: int, directory: str | None
) -> Costs:
    """The costs of those of *devices* for which any are known.

    Those measured on this machine with *num_threads* and kept below *directory*, a cache directory
    or None; otherwise shipped ones, for Penstock's own devices and the nearest number of threads.
    These are of another machine: they are multiplied by what the measured devices take here,
    compared with their shipped costs. What cannot be read counts as unknown.
    """
    found: dict[str, EngineCosts] = {}
    shipped: dict[str, EngineCosts] = {}
    paces: list[float] = []
    for device in devices:
        measured = None
        if directory is not None:
            measured = kept_costs(directory, device, accuracy, num_threads)
        if (before := shipped_costs(device, MODES[accuracy], num_threads)) is not None:
            shipped[device.name] = before
        if measured is not None:
            found[device.name] = measured
            if before is not None and (pace := measured.pace_over(before)) is not None:
                paces.append(pace)
    pace = math.prod(paces) ** (1 / len(paces)) if paces else 1.0
    left = [device.name for device in devices if device.name not in found]
    found |= {name: shipped[name].at_pace(pace) for name in left if name in shipped}
    return found


def kept_costs(
    directory: str, device: Device, accuracy: AccuracyClass, num_threads: int
) -> EngineCosts | None:
    """The costs of *device* that are kept below *directory*; None if none can be read."""
    record = Calibrations(directory).load(calibration_key(device, MODES[accuracy], num_threads))
    if record is None:
        return None
    try:
        return msgspec.json.decode(record.costs, type=EngineCosts)
    except msgspec.MsgspecError:
        return None


def shipped_costs(device: Device, accuracy: AccuracyClass, num_threads: int) -> EngineCosts | None:
    """The shipped costs of *device* in the mode *accuracy*, of a processor of the same sort as this
    one, or of the other sort if there are none. None if the device is not Penstock's own, or has no
    table.
    """
    place = _place_of(device, accuracy, num_threads)
    if place is None:
        return None
    sort, label, threads = place
    return shipped_tables()[sort][label][threads].costs


def shipped_times(device: Device, accuracy: AccuracyClass, num_threads: int) -> Mapping[str, float]:
    """The nanoseconds of the samples, by name, from which `shipped_costs` were made; none if they
    are not shipped.
    """
    place = _place_of(device, accuracy, num_threads)
    if place is None:
        return {}
    sort, label, threads = place
    every = msgspec.json.decode(_content(SHIPPED_TIMES), type=_Times)
    return every.get(sort, {}).get(label, {}).get(threads, {})


def _place_of(
    device: Device, accuracy: AccuracyClass, num_threads: int
) -> tuple[str, str, str] | None:
    """The sort of processors, label and number of threads of the table that is for *device*."""
    if not origin_of(device).startswith(f"{DISTRIBUTION}:"):
        return None
    every, own = shipped_tables(), sort_of_processor()
    for sort in (own, *(name for name in every if name != own)):
        for mode in (accuracy, ANY_CLASS):
            label = f"{device.name} {mode}"
            if by_threads := every[sort].get(label):
                nearest = min(by_threads, key=lambda text: (abs(int(text) - num_threads), text))
                return sort, label, nearest
    return None


def sort_of_processor() -> str:
    """`DOT_PRODUCTS` or `NO_DOT_PRODUCTS`: which tables hold for this processor."""
    has_any = not DOT_FEATURES.isdisjoint(processor_features().split())
    return DOT_PRODUCTS if has_any else NO_DOT_PRODUCTS


@cache
def shipped_tables() -> dict[str, dict[str, dict[str, Table]]]:
    """Tables by sort of processor, by device and class, and then by the number of threads."""
    return msgspec.json.decode(_content(SHIPPED), type=dict[str, dict[str, dict[str, Table]]])


def _content(name: str) -> bytes:
    """The content of a file beside this one."""
    # Importing pathlib or importlib.resources takes longer than this.
    folder = os.path.dirname(__file__)  # noqa: PTH120
    with open(f"{folder}{os.sep}{name}", "rb") as file:  # noqa: PTH123
        return file.read()


def keep(
    directory: str, device: Device, accuracy: AccuracyClass, num_threads: int, samples: int,
    costs: EngineCosts,
) -> str:  # fmt: skip
    """Keeps measured *costs* of *device* below *directory*. Returns why not, or an empty text."""
    record = Calibration(
        key=calibration_key(device, accuracy, num_threads),
        device=device.name,
        version=device.version,
        num_threads=num_threads,
        accuracy=accuracy,
        samples=samples,
        costs=msgspec.Raw(msgspec.json.encode(costs)),
    )
    try:
        Calibrations(directory).save(record)
    except CacheError as error:
        log.warning("the measured costs of %s are not kept: %s", device.name, error)
        return str(error)
    return ""
