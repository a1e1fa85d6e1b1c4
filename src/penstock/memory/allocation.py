"""`allocate`: device memory for inputs and outputs of compiled models (NNAPI section 6.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from penstock import errors
from penstock.hal.buffer import Allocation, BufferDesc, BufferRole, ManagedRole, agreed
from penstock.hal.capabilities import DOMAINS_FROM_LEVEL
from penstock.ir import Operand
from penstock.logs import Log
from penstock.memory.bound import Kind, StepUse
from penstock.memory.buffer import DeviceBuffer
from penstock.memory.storage import InPool, OnDevice, Storage

if TYPE_CHECKING:
    from penstock.hal import Buffer, Device

__all__ = ["BufferDesc", "InputRole", "OutputRole", "RoleUse", "RoleUser", "allocate"]

log = Log(__name__)


class RoleUse(Struct, frozen=True, eq=False):
    """One role: the *index*-th input or output of *user*, and the steps that read or write it."""

    user: object
    index: int
    operand: Operand
    steps: tuple[StepUse, ...]


class RoleUser(Protocol):
    """An object with inputs and outputs that buffers can be allocated for: a `CompiledModel`."""

    def buffer_role(self, kind: Kind, name: str | int) -> RoleUse:
        """The input or output of that name or position. Raises `InputError` if there is none."""
        ...


class _Role(Struct, frozen=True, eq=False):
    compiled: Any
    name: str | int
    frequency: float = 1.0

    def __post_init__(self) -> None:
        given: object = self.frequency
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= 1:
            raise errors.InputError(
                f"the frequency of a role is above 0 and at most 1, not {given!r}"
            )


class InputRole(_Role, frozen=True, eq=False):
    """The buffer is to be input *name* (or position) of *compiled*.

    *frequency* is the share of its runs that use the buffer, in (0, 1]. Raises `InputError` for
    another frequency.
    """


class OutputRole(_Role, frozen=True, eq=False):
    """The buffer is to be output *name* (or position) of *compiled*."""


def allocate(
    roles: Iterable[InputRole | OutputRole],
    dimensions: Sequence[int | None] | None = None,
    *,
    fallback: bool = True,
) -> DeviceBuffer:
    """Allocates memory that serves all of *roles*, on the device that runs them.

    *dimensions* refine the models' shape; None is an unknown dimension, empty means any shape. The
    device is that of all steps that read or write the value. The buffer is a pool if they are on
    several devices, if the device refuses, is below feature level 4, or has no memory of its own.
    The buffer and the receipts of its runs then give the reason. Without *fallback* an error is
    raised instead: that of the device, or `PlacementError` if there is not exactly one device.

    Raises `InputError` without roles, for a role that names no input or output of a compiled model
    or is repeated, for roles that differ in element type or quantisation, and for dimensions that
    contradict each other.
    """
    if not isinstance(roles, Iterable):
        raise errors.InputError(f"roles takes a list of InputRole and OutputRole, not {roles!r}")
    named = list(roles)
    managed, steps = [], []
    for place, role in enumerate(named):
        use = _use_of(role, place)
        kind: Kind = "input" if isinstance(role, InputRole) else "output"
        managed.append(ManagedRole(use.user, kind, use.index, use.operand, role.frequency))
        steps.append(use.steps)
    if dimensions is not None and not isinstance(dimensions, Iterable):
        raise errors.InputError(
            f"dimensions takes a tuple, None for what is not known, not {dimensions!r}"
        )
    desc = BufferDesc(tuple(dimensions or ()))
    try:
        allocation = agreed(desc, managed)
    except errors.InvalidArgument as error:
        raise errors.InputError(f"no buffer: {error}") from None
    name = f"the buffer for {', '.join(f'{r.kind} {r.operand.name or r.index}' for r in managed)}"
    return DeviceBuffer(allocation, _stored(allocation, desc, managed, steps, fallback), name)


def _use_of(role: object, place: int) -> RoleUse:
    if not isinstance(role, InputRole | OutputRole):
        raise errors.InputError(
            f"role {place} must be an InputRole or an OutputRole, not {type(role).__name__}"
        )
    find = getattr(role.compiled, "buffer_role", None)
    if find is None:
        raise errors.InputError(
            f"role {place} names a {type(role.compiled).__name__}, which is no compiled model"
        )
    found: RoleUse = find("input" if isinstance(role, InputRole) else "output", role.name)
    return found


def _stored(
    allocation: Allocation,
    desc: BufferDesc,
    managed: Sequence[ManagedRole],
    steps: Sequence[tuple[StepUse, ...]],
    fallback: bool,
) -> Storage:
    devices = {id(u.device): u.device for uses in steps for u in uses}
    device, reason = next(iter(devices.values()), None), ""
    if device is None:
        reason = "no device's step uses it"
    elif len(devices) > 1:
        names = ", ".join(sorted(d.name for d in devices.values()))
        reason = f"its uses are on several devices ({names})"
    elif (level := device.feature_level) < DOMAINS_FROM_LEVEL:
        needed = f"memory of its own needs {DOMAINS_FROM_LEVEL}"
        reason = f"device {device.name} has feature level {level}; {needed}"
    if reason and not fallback:
        raise errors.PlacementError(f"no device can allocate the buffer: {reason}")
    if device is None or reason:
        return _in_pool(allocation, reason)
    asked: dict[tuple[int, str, int], BufferRole] = {}
    for role, uses in zip(managed, steps, strict=True):
        for use in uses:
            key = (id(use.prepared), use.kind, use.position)
            often = max(role.frequency, asked[key].frequency if key in asked else 0.0)
            asked[key] = BufferRole(use.prepared, use.kind, use.position, often)
    try:
        token, buffer = _asked_of(device, desc, list(asked.values()))
    except errors.DriverError as error:
        if not fallback:
            raise
        return _in_pool(allocation, f"device {device.name}: {type(error).__name__}: {error}")
    return OnDevice(device, token, buffer, [u for uses in steps for u in uses])


def _asked_of(device: Device, desc: BufferDesc, roles: Sequence[BufferRole]) -> tuple[int, Buffer]:
    """Calls `Device.allocate` and enforces its contract."""
    try:
        token, buffer = device.allocate(desc, roles)
    except errors.DriverError:
        raise
    except errors.FOREIGN as error:
        raise errors.GeneralFailure(f"it failed in allocate: {error!r}") from error
    answer: object = buffer
    if type(token) is not int or token <= 0 or answer is None:
        if answer is not None:
            buffer.close()
        raise errors.GeneralFailure(
            f"it answered with the token {token!r} and {type(answer).__name__}"
        )
    return token, buffer


def _in_pool(allocation: Allocation, reason: str) -> InPool:
    log.info("a device buffer lies in a pool: %s", reason)
    return InPool(allocation, reason)
