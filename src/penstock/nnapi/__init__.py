"""NNAPI: its object model with its states and result codes, its models as values (`description`),
and their lowering into the IR (`lowering`).

    from penstock import nnapi

    model = nnapi.Model()
    x, y = (model.add_operand(nnapi.OperandType.TENSOR_FLOAT32, (2, 3)) for _ in range(2))
    model.add_operation(nnapi.OperationCode.ABS, [x], [y])
    model.identify_inputs_and_outputs([x], [y])
    model.finish()
    with nnapi.Compilation(model) as compilation:
        compilation.finish()
        with nnapi.Execution(compilation) as execution:
            execution.set_input(0, given)
            execution.set_output(0, wanted)
            execution.compute()

Names load when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.nnapi.burst import Burst
    from penstock.nnapi.codes import (
        DeviceType,
        DurationCode,
        FeatureLevel,
        FuseCode,
        OperationCode,
        PaddingCode,
        Preference,
        Priority,
        ResultCode,
    )
    from penstock.nnapi.compilation import Compilation
    from penstock.nnapi.description import OperandType
    from penstock.nnapi.devices import (
        Device,
        get_device,
        get_device_by_name,
        get_device_count,
        get_runtime_feature_level,
        register_extensions,
    )
    from penstock.nnapi.event import Event
    from penstock.nnapi.execution import (
        UNKNOWN_DURATION,
        Execution,
        get_default_loop_timeout,
        get_maximum_loop_timeout,
    )
    from penstock.nnapi.failures import NnapiError
    from penstock.nnapi.memory import Memory
    from penstock.nnapi.memory_desc import MemoryDesc
    from penstock.nnapi.model import Model
    from penstock.nnapi.ports import OperandDesc

__all__ = [
    "UNKNOWN_DURATION",
    "Burst",
    "Compilation",
    "Device",
    "DeviceType",
    "DurationCode",
    "Event",
    "Execution",
    "FeatureLevel",
    "FuseCode",
    "Memory",
    "MemoryDesc",
    "Model",
    "NnapiError",
    "OperandDesc",
    "OperandType",
    "OperationCode",
    "PaddingCode",
    "Preference",
    "Priority",
    "ResultCode",
    "get_default_loop_timeout",
    "get_device",
    "get_device_by_name",
    "get_device_count",
    "get_maximum_loop_timeout",
    "get_runtime_feature_level",
    "register_extensions",
]

_HOMES = {
    "Burst": "burst",
    "Compilation": "compilation",
    "Device": "devices",
    "DeviceType": "codes",
    "DurationCode": "codes",
    "Event": "event",
    "Execution": "execution",
    "FeatureLevel": "codes",
    "FuseCode": "codes",
    "Memory": "memory",
    "MemoryDesc": "memory_desc",
    "Model": "model",
    "NnapiError": "failures",
    "OperandDesc": "ports",
    "OperandType": "description",
    "OperationCode": "codes",
    "PaddingCode": "codes",
    "Preference": "codes",
    "Priority": "codes",
    "ResultCode": "codes",
    "UNKNOWN_DURATION": "execution",
    "get_default_loop_timeout": "execution",
    "get_device": "devices",
    "get_device_by_name": "devices",
    "get_device_count": "devices",
    "get_maximum_loop_timeout": "execution",
    "get_runtime_feature_level": "devices",
    "register_extensions": "devices",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.nnapi' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"penstock.nnapi.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
