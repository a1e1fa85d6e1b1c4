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

from typing import TYPE_CHECKING

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.nnapi.codes import (
        DeviceType,
        DurationCode,
        FeatureLevel,
        FuseCode,
        NnapiError,
        OperationCode,
        PaddingCode,
        Preference,
        Priority,
        ResultCode,
    )
    from penstock.nnapi.compilation import Burst, Compilation
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

__getattr__ = lazily(
    __name__,
    {
        "codes": (
            "DeviceType DurationCode FeatureLevel FuseCode NnapiError OperationCode PaddingCode"
            " Preference Priority ResultCode"
        ),
        "compilation": "Burst Compilation",
        "description": "OperandType",
        "devices": (
            "Device get_device get_device_by_name get_device_count get_runtime_feature_level"
            " register_extensions"
        ),
        "event": "Event",
        "execution": (
            "UNKNOWN_DURATION Execution get_default_loop_timeout get_maximum_loop_timeout"
        ),
        "memory": "Memory",
        "memory_desc": "MemoryDesc",
        "model": "Model",
        "ports": "OperandDesc",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
