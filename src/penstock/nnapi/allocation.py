"""Memory made from a descriptor: a device's own, or shared memory in its place (NNAPI section 6.4)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import DriverError, InputError, PlacementError
from penstock.hal import Device as HalDevice
from penstock.hal.capabilities import DOMAINS_FROM_LEVEL
from penstock.logs import Log
from penstock.memory import (
    DeviceBuffer,
    HardwareBuffer,
    InputRole,
    MemoryPool,
    OutputRole,
    allocate as allocate_buffer,
)
from penstock.nnapi.codes import ResultCode
from penstock.nnapi.description import ir_shape
from penstock.nnapi.failures import NnapiError, bad_data, translated, unexpected_null
from penstock.nnapi.memory_desc import MemoryDesc
from penstock.nnapi.ports import size_of
from penstock.nnapi.rules import DeviceRules, Role, Rules
from penstock.nnapi.stores import DeviceStore, PoolStore, Store

log = Log(__name__)


def allocate(desc: object) -> tuple[Store, Rules]:
    """What `Memory.create_from_desc` is made of."""
    if desc is None:
        raise unexpected_null("the descriptor")
    if not isinstance(desc, MemoryDesc):
        raise bad_data(f"a penstock.nnapi.MemoryDesc is needed, not {type(desc).__name__}")
    roles, operand, shape = desc.roles, desc.operand, desc.shape
    rules = DeviceRules(roles, operand, shape)
    with translated():
        nbytes = size_of(operand, shape)
        devices = _devices(roles)
    try:
        return DeviceStore(_on_device(desc, devices)), rules
    except (DriverError, PlacementError, InputError) as error:
        if nbytes is None or any(role.compilation.names_devices for role in roles):
            raise NnapiError(
                ResultCode.OP_FAILED, f"no device has memory for these roles: {error}"
            ) from error
        log.info("memory of a descriptor is shared memory: %s", error)
    with translated():
        if devices and all(_takes_blobs(device) for device in devices):
            with HardwareBuffer.allocate(nbytes) as buffer:
                return PoolStore(MemoryPool.from_hardware_buffer(buffer)), rules
        return PoolStore(MemoryPool.anonymous(nbytes)), rules


def _on_device(desc: MemoryDesc, devices: Sequence[HalDevice]) -> DeviceBuffer:
    """Memory of the one of *devices*; `PlacementError` where there is not exactly one that can have
    any.
    """
    if len(devices) != 1:
        names = ", ".join(device.name for device in devices)
        raise PlacementError(
            f"the roles are of several devices ({names})" if names else "the roles are of no device"
        )
    listed = [
        (InputRole if r.kind == "input" else OutputRole)(
            r.compilation.compiled, r.index, r.frequency
        )
        for r in desc.roles
    ]
    return allocate_buffer(listed, ir_shape(desc.operand.type, desc.shape), fallback=False)


def _devices(roles: Sequence[Role]) -> list[HalDevice]:
    """Those of all steps that read or write what has these roles."""
    found: dict[int, HalDevice] = {}
    for role in roles:
        use = role.compilation.compiled.buffer_role(role.kind, role.index)
        found.update({id(step.device): step.device for step in use.steps})
    return list(found.values())


def _takes_blobs(device: HalDevice) -> bool:
    """Whether a hardware buffer may stand in for memory of *device*: below the level of such memory
    none does.
    """
    kinds = device.capabilities.memory_kinds
    return device.feature_level >= DOMAINS_FROM_LEVEL and "hardware_buffer_blob" in kinds
