"""`MemoryDesc`: the uses of a device's memory, and its allocation (NNAPI section 6.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.closing import Closing
from penstock.errors import DriverError, InputError, PlacementError
from penstock.hal import Device as HalDevice
from penstock.hal.capabilities import DOMAINS_FROM_LEVEL
from penstock.ir.types import Shape
from penstock.logs import Log
from penstock.memory import (
    HardwareBuffer,
    InputRole,
    MemoryPool,
    OutputRole,
    allocate as allocate_buffer,
)
from penstock.nnapi import codes, memory_kinds, parameters
from penstock.nnapi.description import ir_shape
from penstock.nnapi.ports import Kind, Ported, merged, size_of

if TYPE_CHECKING:
    from penstock.nnapi.description import NnapiOperand


class MemoryDesc(Closing):
    """A descriptor under construction, then finished: `ANeuralNetworksMemoryDesc` (NNAPI section
    6.4).

    Each role is an input or output of a finished compilation. All roles describe one operand: equal
    types, scales, zero points and channel scales, compatible dimensions. A descriptor may serve
    several memories (`Memory.create_from_desc`). Every call raises `NnapiError`: BAD_STATE after
    `finish`.

    Not thread-safe until it is finished.
    """

    def __init__(self) -> None:
        self._roles: list[memory_kinds.Role] = []
        self._operand: NnapiOperand | None = None
        self._shape: Shape = None
        self._sealed = ""

    def add_input_role(self, compilation: Ported, index: int, frequency: float = 1.0) -> None:
        """Declares that the memory will be input *index* of executions of *compilation*.

        *frequency* is the share of executions that use it: 0 < *frequency* <= 1. Raises BAD_DATA
        for an unfinished compilation, an unknown index, a frequency out of range, a repeated role,
        and an operand that contradicts earlier roles or dimensions.
        """
        self._add(compilation, "input", index, frequency)

    def add_output_role(self, compilation: Ported, index: int, frequency: float = 1.0) -> None:
        """The same for an output."""
        self._add(compilation, "output", index, frequency)

    def set_dimensions(self, dimensions: Sequence[int | None]) -> None:
        """Refines the shape of the roles: 0 or None is an unknown dimension, an empty list an
        unknown rank.

        Raises BAD_DATA if they contradict each other; a scalar has no dimensions.
        """
        self._check_open()
        given = parameters.dimensions(parameters.listed(dimensions, "the dimensions"), tensor=True)
        if self._operand is not None and not self._operand.type.is_tensor and given is not None:
            raise codes.bad_data(f"a {self._operand.type.name} has no dimensions")
        self._shape = merged(self._shape, given, "the descriptor")

    def finish(self) -> None:
        """Ends the description. BAD_DATA without a role."""
        self._check_open()
        if not self._roles:
            raise codes.bad_data("a descriptor needs a role")
        self._sealed = "finished"

    @property
    def is_finished(self) -> bool:
        """Whether `finish` has succeeded."""
        return self._sealed == "finished"

    @property
    def described(self) -> tuple[tuple[memory_kinds.Role, ...], NnapiOperand]:
        """The roles, and an operand that represents them all; BAD_STATE unless it is finished."""
        if not self.is_finished or self._operand is None:
            raise codes.bad_state(f"the descriptor is {self._sealed or 'not finished'}")
        return tuple(self._roles), self._operand

    @property
    def shape(self) -> Shape:
        """The shape from roles and dimensions together; BAD_STATE unless it is finished."""
        _ = self.described
        return self._shape

    def close(self) -> None:
        """Frees it. Memories made from it stay valid."""
        self._roles, self._operand, self._sealed = [], None, "closed"

    def _add(self, compilation: object, kind: Kind, index: object, frequency: object) -> None:
        self._check_open()
        parameters.given(compilation, "the compilation")
        if not isinstance(compilation, Ported) or not compilation.is_finished:
            raise codes.bad_data("a role needs a finished compilation")
        port = compilation.port(kind, index)
        share = parameters.real(frequency, "the frequency")
        if not 0.0 < share <= 1.0:
            raise codes.bad_data(f"the frequency is {share}; above 0 and up to 1 is possible")
        if any(
            (r.compilation, r.kind, r.index) == (compilation, kind, port.index) for r in self._roles
        ):
            raise codes.bad_data(f"{port} of this compilation is a role already")
        if self._operand is not None and not memory_kinds.alike(self._operand, port.operand):
            raise codes.bad_data(f"{port} differs in type or quantisation from the roles before it")
        if not port.operand.type.is_tensor and self._shape not in {None, ()}:
            raise codes.bad_data(f"{port} is a scalar, and the descriptor has dimensions")
        self._shape = merged(self._shape, port.operand.dimensions, f"the descriptor and {port}")
        self._operand = port.operand
        self._roles.append(memory_kinds.Role(compilation, kind, port.index, share))

    def _check_open(self) -> None:
        if self._sealed:
            raise codes.bad_state(f"the descriptor is {self._sealed} and can no longer be changed")


log = Log(__name__)


def allocate(desc: object) -> tuple[memory_kinds.Store, memory_kinds.Rules]:
    """Allocates the storage for `Memory.create_from_desc`. Returns it with its rules."""
    desc = parameters.instance(desc, MemoryDesc, "the descriptor")
    (roles, operand), shape = desc.described, desc.shape
    rules = memory_kinds.DeviceRules(roles, operand, shape)
    with codes.translated():
        nbytes = size_of(operand, shape)
        devices = _devices(roles)
    try:
        if len(devices) != 1:
            names = ", ".join(device.name for device in devices)
            several = f"the roles are of several devices ({names})"
            raise PlacementError(several if names else "the roles are of no device")
        listed = [
            (InputRole if r.kind == "input" else OutputRole)(
                r.compilation.compiled, r.index, r.frequency
            )
            for r in roles
        ]
        buffer = allocate_buffer(listed, ir_shape(operand.type, shape), fallback=False)
        return memory_kinds.DeviceStore(buffer), rules
    except (DriverError, PlacementError, InputError) as error:
        if nbytes is None or any(role.compilation.names_devices for role in roles):
            raise codes.NnapiError(
                codes.ResultCode.OP_FAILED, f"no device has memory for these roles: {error}"
            ) from error
        log.info("memory of a descriptor is shared memory: %s", error)
    with codes.translated():
        if devices and all(
            device.feature_level >= DOMAINS_FROM_LEVEL
            and "hardware_buffer_blob" in device.capabilities.memory_kinds
            for device in devices
        ):
            with HardwareBuffer.allocate(nbytes) as blob:
                return memory_kinds.PoolStore(MemoryPool.from_hardware_buffer(blob)), rules
        return memory_kinds.PoolStore(MemoryPool.anonymous(nbytes)), rules


def _devices(roles: Sequence[memory_kinds.Role]) -> list[HalDevice]:
    """The devices of all steps that read or write an argument with these roles."""
    found: dict[int, HalDevice] = {}
    for role in roles:
        use = role.compilation.compiled.buffer_role(role.kind, role.index)
        found.update({id(step.device): step.device for step in use.steps})
    return list(found.values())
