"""Doubles of drivers for NNAPI's own tests, in this process or in one of their own."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Literal, get_args

from penstock import hal
from penstock.drivers.reference import ReferenceDevice
from penstock.errors import ErrorStatus, GeneralFailure, ResourceExhaustedTransient
from penstock.ipc.resilient import IsolatedDevice
from penstock.ir import Model
from penstock.runtime.isolation import supervisor_of
from penstock.testing.doubles import FaultyDevice, InterceptingDevice

Outcome = Literal["OK", "BAD_TOKEN", "BAD_IBUFFER", "BAD_STATUS", "NOT_SUPPORTED"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
LEVELS: Final = {"V1_2": 3, "latest": 8}
PARTS: Final = {"whole": ("ADD", "MUL", "RELU"), "first": ("ADD",), "second": ("MUL",)}
"""Operations of each driver, by name."""

EXECUTES: Final = ("execute", "execute_fenced", "burst_execute", "reusable_execute")
STATUS_LEVELS: Final = (1, 2, 3, 4)


class DomainDriver(InterceptingDevice):
    """The reference device for some *operations*, at a feature level; `allocate` ends as told.

    It notes the description and the roles of every buffer that it is asked for.
    """

    def __init__(
        self, name: str, level: int, outcome: Outcome, operations: Collection[str]
    ) -> None:
        super().__init__(ReferenceDevice(), name)
        self.level, self.outcome, self.operations = level, outcome, frozenset(operations)
        self.asked: list[tuple[hal.BufferDesc, Sequence[hal.BufferRole]]] = []

    @property
    def feature_level(self) -> int:
        return self.level

    @property
    def capabilities(self) -> hal.Capabilities:
        return hal.Capabilities(
            performance={"float32": hal.PerformanceInfo(0.1, 0.1)},
            memory_kinds=("ashmem", "mmap_fd", "hardware_buffer_blob"),
        )

    def supported_operations(self, model: Model) -> Sequence[hal.Support]:
        answers = self.device.supported_operations(model)
        return [
            answer if operation.type in self.operations else hal.Support(False, "as told")
            for operation, answer in zip(model.operations, answers, strict=True)
        ]

    def allocate(
        self, desc: hal.BufferDesc, roles: Sequence[hal.BufferRole]
    ) -> tuple[int, hal.Buffer]:
        self.asked.append((desc, roles))
        if self.outcome == "NOT_SUPPORTED":
            raise GeneralFailure("this device has no memory domains")
        if self.outcome == "BAD_STATUS":
            raise ResourceExhaustedTransient("no room, as told")
        token, buffer = super().allocate(desc, roles)
        if self.outcome == "BAD_TOKEN":
            return 0, buffer
        if self.outcome == "BAD_IBUFFER":
            buffer.close()
            nothing: Any = None
            return token, nothing
        return token, buffer


class StatusDriver(FaultyDevice):
    """The reference device at a feature level; each of its executions ends in *status*."""

    def __init__(self, level: int, status: ErrorStatus) -> None:
        meant: Any = {} if status is ErrorStatus.NONE else dict.fromkeys(EXECUTES, "always")
        error = ErrorStatus.GENERAL_FAILURE if status is ErrorStatus.NONE else status
        super().__init__(ReferenceDevice(), meant, error, f"ends-in-{status.name}-{level}")
        self.level = level

    @property
    def feature_level(self) -> int:
        return self.level


DOMAINS: Final = tuple(itertools.product(PARTS, LEVELS, OUTCOMES))
STATUSES: Final = tuple(itertools.product(STATUS_LEVELS, ErrorStatus))


def domain_driver(part: str, level: str, outcome: Outcome) -> DomainDriver:
    """The driver *part* at that level, whose allocations end so."""
    return DomainDriver(f"{part}-{level}-{outcome}", LEVELS[level], outcome, PARTS[part])


def create() -> list[hal.Device]:
    """All of them, for one host process: those of `DOMAINS`, then those of `STATUSES`."""
    return [*itertools.starmap(domain_driver, DOMAINS), *itertools.starmap(StatusDriver, STATUSES)]


def hosted() -> Iterator[list[hal.Device]]:
    """What `create` makes, in a process of its own, until the generator is closed."""
    supervisor = supervisor_of("nnapi-tests", f"{__name__}:create")
    devices: list[hal.Device] = [
        IsolatedDevice(supervisor, index) for index in range(len(DOMAINS) + len(STATUSES))
    ]
    try:
        yield devices
    finally:
        for device in devices:
            device.close()
