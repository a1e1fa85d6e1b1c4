"""Delegates for one kind of device, from any driver. Experimental until 1.0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.delegates.context import DelegateContext
from penstock.delegates.driver import AnyDevice, CallerCache, DriverDelegate, checked_count
from penstock.errors import DeviceUnavailable, PlacementError
from penstock.hal import AccuracyClass, Capabilities, Device, Preference
from penstock.ir import DType, Model, ModelBuilder, Operand, Quantization
from penstock.logs import Log
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import collect_support
from penstock.runtime.discovery import DeviceInfo, manager
from penstock.runtime.examination import examined

log = Log(__name__)

FLOATS: Final = frozenset({"float32", "float16"})
BYTES: Final = frozenset({"int8", "uint8"})


class Kind(Struct, frozen=True):
    """The requirements of a delegate on its device.

    *title* is the kind in words. The device has one of *types* (DeviceType's values; none: any) and
    one of *families* (none: any). Of several devices, the delegate takes the one with the least
    declared time for *dtype*.

    A device of one of the families *stand_ins* computes as such hardware does, without having it.
    It needs none of *types*, and only a caller who names it gets it.
    """

    title: str
    types: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    dtype: str = "float32"
    stand_ins: tuple[str, ...] = ()

    def mismatch(self, info: DeviceInfo) -> str:
        """Why a device is not of this kind; "" if it is."""
        if self.types and info.type not in self.types:
            return f"its type is {info.type}"
        families = info.capabilities.families
        if self.families and not set(self.families) & set(families):
            return f"its families are {', '.join(families)}" if families else "it names no family"
        return ""

    def mismatch_of_named(self, info: DeviceInfo) -> str:
        """Why a device that the caller names is neither of this kind nor stands in for it."""
        families = set(info.capabilities.families)
        if families & set(self.stand_ins) and (not self.families or families & set(self.families)):
            return ""
        return self.mismatch(info)

    @property
    def sought(self) -> str:
        asked = {"type": self.types, "family": self.families}
        parts = [f"of {what} {' or '.join(words)}" for what, words in asked.items() if words]
        return f"{self.title} (a device {' and '.join(parts)})"

    def cost(self, capabilities: Capabilities) -> tuple[bool, float]:
        """A sort key: hardware before simulators, faster before slower."""
        declared = capabilities.performance_of(self.dtype)
        return capabilities.simulated, math.inf if declared is None else declared.execution_time


def find_device(kind: Kind, accuracy: AccuracyClass = "faithful") -> tuple[Device, DeviceInfo]:
    """The best usable device of *kind*, the class *accuracy* first; or `DeviceUnavailable`."""
    infos = manager.infos()
    fitting = [i for i in infos if i.usable and not kind.mismatch(i)]
    found = [(d, i) for i in fitting if (d := manager.by_name(i.name)) is not None]
    found.sort(key=lambda pair: kind.cost(pair[1].capabilities))
    if len(found) > 1 and accuracy != "relaxed":
        found.sort(key=lambda pair: (pair[1].capabilities.simulated, is_relaxed_alone(*pair)))
    if found:
        return found[0]
    reasons = "; ".join(
        f"{i.name}: {kind.mismatch(i) or i.reason or 'it is no longer there'}" for i in infos
    )
    text = f"no {kind.sought} is usable; found: {reasons or 'no device at all'}"
    raise DeviceUnavailable(f"{text}{_stand_in_of(kind, infos)}")


def _stand_in_of(kind: Kind, infos: Sequence[DeviceInfo]) -> str:
    """Which device stands in for the missing hardware, and how to name it; "" if none does."""
    for info in infos:
        if kind.mismatch(info) and not kind.mismatch_of_named(info):
            text = f"; {info.name} computes without such hardware, and only if it is named"
            if not info.usable:
                return f"{text} (it cannot be used: {info.reason})"
            return f"{text}: device={info.name!r}"
    return ""


def is_relaxed_alone(device: Device, info: DeviceInfo) -> bool:
    """Whether the device supports a plain operation only in the class `relaxed`."""
    dtype, quantization = DType.FLOAT32, None
    if info.capabilities.performance_of("float32") is None:
        dtype, quantization = DType.INT8, Quantization((0.5,), (0,))
    builder = ModelBuilder()
    x = builder.input(dtype, (1, 4), "x", quantization)
    model = builder.build(builder.operation("RELU", [x], [(dtype, (1, 4), quantization)]))

    def takes(policy: Policy) -> bool:
        return bool(collect_support(model, [device], policy).takers(0))

    return takes(Policy(accuracy="relaxed")) and not takes(Policy())


def given_device(kind: Kind, wanted: AnyDevice) -> tuple[Device, DeviceInfo]:
    """The device that the caller named. Raises `DeviceUnavailable`, also for another kind."""
    try:
        (device,) = manager.choose([wanted])
    except PlacementError as error:
        raise DeviceUnavailable(str(error)) from error
    info = examined(device, device.name).info
    if reason := kind.mismatch_of_named(info):
        raise DeviceUnavailable(f"{info.name} is no {kind.sought}: {reason}")
    return device, info


class KindDelegate(DriverDelegate):
    """A delegate over one device of its *kind*. A subclass says which tensors its engine accepts.

    *device* is a device or its name; None takes the best of all installed drivers, including
    devices that are otherwise used only by name. *max_delegated_partitions* 0 means all.
    """

    def __init__(
        self,
        kind: Kind,
        device: AnyDevice | None,
        *,
        accuracy: AccuracyClass = "faithful",
        preference: Preference = "fast_single_answer",
        num_threads: int | None = None,
        max_delegated_partitions: int = 0,
        min_nodes_per_partition: int = 0,
        caller_cache: CallerCache | None = None,
    ) -> None:
        most = checked_count("max_delegated_partitions", max_delegated_partitions)
        least = checked_count("min_nodes_per_partition", min_nodes_per_partition)
        chosen, self.info = (
            find_device(kind, accuracy) if device is None else given_device(kind, device)
        )
        self.simulated = self.info.capabilities.simulated
        """Whether the device is a test double or a simulator, not hardware."""
        self.caller_cache = caller_cache
        super().__init__(
            chosen,
            policy=Policy(accuracy=accuracy, allow_fallback=False),
            preference=preference,
            num_threads=num_threads,
            max_delegated_partitions=most or None,
            min_nodes_per_partition=least,
        )

    def refuses(self, operand: Operand) -> str:
        """Why the engine rejects a tensor that is not constant; "" if it accepts it."""
        return ""

    def initialize(self, context: DelegateContext) -> None:
        """As `DriverDelegate`; warns if no node of the graph is taken."""
        super().initialize(context)
        if len(self.reasons) == len(context.execution_plan) > 0:
            first = next(iter(self.reasons.values()))
            text = "%s takes none of %d nodes; the first because: %s"
            log.warning(text, self.name, len(context.execution_plan), first)

    def refusals(self, model: Model) -> list[str]:
        """Why each operation is not taken: a rejected tensor, else the device's reason."""
        found = super().refusals(model)
        for at, operation in enumerate(model.operations):
            for index in reversed((*operation.inputs, *operation.outputs)):
                operand = model.operands[index]
                if operand.has_value and not operand.is_constant and (why := self.refuses(operand)):
                    found[at] = f"{operand.name or f'operand {index}'} {why}"
        return found


def is_quantised(operand: Operand) -> bool:
    """Whether a tensor has quantised 8-bit values."""
    return operand.dtype.value in BYTES and operand.quantization is not None


def shown_type(operand: Operand) -> str:
    """A tensor's element type in words."""
    if operand.quantization is not None and operand.dtype.value not in FLOATS:
        return f"quantised {operand.dtype.value}"
    return operand.dtype.value
