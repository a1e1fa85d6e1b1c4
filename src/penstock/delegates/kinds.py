"""Delegates for one kind of device, whichever driver brings it. Experimental until 1.0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.delegates.context import DelegateContext
from penstock.delegates.driver import AnyDevice, DriverDelegate
from penstock.errors import DeviceUnavailable, InputError, PlacementError
from penstock.hal import AccuracyClass, Capabilities, Device, Preference, Priority
from penstock.ir import DType, Model, ModelBuilder, Operand, Quantization
from penstock.logs import Log
from penstock.partitioning.policy import Policy
from penstock.partitioning.support import collect_support
from penstock.runtime.discovery import DeviceInfo, manager

log = Log(__name__)


class Kind(Struct, frozen=True):
    """What a delegate looks for: *title* in words, one of *types* (DeviceType's values; none: any),
    and one of *families* (none: any). Of several the one that declares the least time for *dtype*
    is taken.
    """

    title: str
    types: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    dtype: str = "float32"

    def mismatch(self, info: DeviceInfo) -> str:
        """Why a device is not of this kind; empty where it is."""
        if self.types and info.type not in self.types:
            return f"its type is {info.type}"
        families = info.capabilities.families
        if self.families and not set(self.families) & set(families):
            return f"its families are {', '.join(families)}" if families else "it names no family"
        return ""

    @property
    def sought(self) -> str:
        """What was looked for, in words."""
        parts = []
        if self.types:
            parts.append(f"of type {' or '.join(self.types)}")
        if self.families:
            parts.append(f"of family {' or '.join(self.families)}")
        return f"{self.title} (a device {' and '.join(parts)})"

    def cost(self, capabilities: Capabilities) -> tuple[bool, float]:
        """Hardware before what only stands for it, the faster before the slower."""
        declared = capabilities.performance_of(self.dtype)
        return capabilities.simulated, math.inf if declared is None else declared.execution_time


def find_device(kind: Kind, accuracy: AccuracyClass = "faithful") -> tuple[Device, DeviceInfo]:
    """The best usable device of *kind*, of every installed driver: one that computes in the class
    *accuracy* before others. `DeviceUnavailable` says what was looked for, and what each device is
    instead.
    """
    infos = manager.infos()
    fitting = [i for i in infos if i.usable and not kind.mismatch(i)]
    found = [(d, i) for i in fitting if (d := manager.by_name(i.name)) is not None]
    found.sort(key=lambda pair: kind.cost(pair[1].capabilities))
    if len(found) > 1 and accuracy != "relaxed":
        found.sort(key=lambda pair: (pair[1].capabilities.simulated, is_relaxed_alone(*pair)))
    if found:
        return found[0]
    told = "; ".join(
        f"{i.name}: {kind.mismatch(i) or i.reason or 'it is no longer there'}" for i in infos
    )
    raise DeviceUnavailable(f"no {kind.sought} is usable; found: {told or 'no device at all'}")


def is_relaxed_alone(device: Device, info: DeviceInfo) -> bool:
    """Whether the device takes a plain operation in `relaxed` or `stepwise`, and in no class that
    delegates ask for else.
    """
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
    """The device that the caller named. `DeviceUnavailable` where there is none, where it cannot be
    used, and where it is another kind of device.
    """
    try:
        (device,) = manager.choose([wanted])
    except PlacementError as error:
        raise DeviceUnavailable(str(error)) from error
    info = _info_of(device)
    if reason := kind.mismatch(info):
        raise DeviceUnavailable(f"{info.name} is no {kind.sought}: {reason}")
    return device, info


def _info_of(device: Device) -> DeviceInfo:
    return DeviceInfo(
        name=device.name,
        type=device.type.value,
        version=device.version,
        usable=True,
        reason="",
        feature_level=device.feature_level,
        capabilities=device.capabilities,
        only_when_named=device.capabilities.only_when_named,
        driver=device.name,
    )


class KindDelegate(DriverDelegate):
    """A delegate over the one device of its *kind*; a subclass says which tensors its engine
    computes with.

    *device* names a device, or is one; None takes the best of all installed drivers, those that
    must be named too.
    """

    def __init__(
        self,
        kind: Kind,
        device: AnyDevice | None,
        *,
        accuracy: AccuracyClass = "faithful",
        preference: Preference = "fast_single_answer",
        priority: Priority = "medium",
        num_threads: int | None = None,
        max_delegated_partitions: int | None = None,
        min_nodes_per_partition: int | None = None,
    ) -> None:
        chosen, self.info = (
            find_device(kind, accuracy) if device is None else given_device(kind, device)
        )
        self.simulated = self.info.capabilities.simulated
        """Whether no such hardware is there, and a test double or a simulator stands for it."""
        super().__init__(
            chosen,
            policy=Policy(accuracy=accuracy, allow_fallback=False),
            preference=preference,
            priority=priority,
            num_threads=num_threads,
            max_delegated_partitions=max_delegated_partitions,
            min_nodes_per_partition=min_nodes_per_partition,
        )

    def refuses(self, operand: Operand) -> str:
        """Why the engine does not compute with a tensor that is no constant; empty where it does."""
        return ""

    def initialize(self, context: DelegateContext) -> None:
        """As `DriverDelegate`; a graph of which nothing is taken is worth a warning."""
        super().initialize(context)
        if self.reasons and not self._taken:
            first = next(iter(self.reasons.values()))
            text = "%s takes none of %d nodes; the first because: %s"
            log.warning(text, self.name, len(context.execution_plan), first)

    def refusals(self, model: Model) -> list[str]:
        """For each operation why it is not taken: a tensor that the engine does not compute with,
        else the device's reason.
        """
        own = [self._refused(model, at) for at in range(len(model.operations))]
        asked = super().refusals(model)
        return [mine or theirs for mine, theirs in zip(own, asked, strict=True)]

    def _refused(self, model: Model, at: int) -> str:
        operation = model.operations[at]
        for index in (*operation.inputs, *operation.outputs):
            operand = model.operands[index]
            if operand.has_value and not operand.is_constant and (why := self.refuses(operand)):
                return f"{operand.name or f'operand {index}'} {why}"
        return ""


def checked_count(name: str, value: int, least: int = 0) -> int:
    """*value*, a whole number of at least *least*; else `InputError` that names the option."""
    if type(value) is not int or value < least:
        raise InputError(f"{name} is a whole number, {least} or more, not {value!r}")
    return value


def checked_choice(name: str, value: str, choices: Sequence[str]) -> str:
    """*value*, one of *choices*; else `InputError` that names the option."""
    if value not in choices:
        raise InputError(f"{name} {value!r} is not one of {', '.join(choices)}")
    return value


FLOATS: Final = frozenset({"float32", "float16"})
BYTES: Final = frozenset({"int8", "uint8"})


def is_quantised(operand: Operand) -> bool:
    """Whether a tensor has 8-bit values that stand for real ones."""
    return operand.dtype.value in BYTES and operand.quantization is not None


def shown_type(operand: Operand) -> str:
    """A tensor's element type in words."""
    if operand.quantization is not None and operand.dtype.value not in FLOATS:
        return f"quantised {operand.dtype.value}"
    return operand.dtype.value
