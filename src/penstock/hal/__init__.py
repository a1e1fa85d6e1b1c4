"""The interface between the runtime and drivers. Imports only `ir` and `errors` of Penstock.

The runtime is above it and drivers are below it. Every argument and result is a frozen struct or a
handle, so that it can cross a process boundary unchanged.
"""

from typing import TYPE_CHECKING

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.hal.buffer import Buffer, BufferDesc, BufferRole
    from penstock.hal.capabilities import (
        ACCURACY_RANK,
        SUPPORTED,
        AccuracyClass,
        Capabilities,
        DeviceType,
        Extension,
        ExtensionAttribute,
        ExtensionOperandType,
        MemoryPreference,
        PerformanceInfo,
        Support,
    )
    from penstock.hal.config import (
        BYTE_SIZE_OF_CACHE_TOKEN,
        MAX_NUMBER_OF_CACHE_FILES,
        NO_TOKEN,
        PREFERENCES,
        PRIORITIES,
        CacheHandle,
        CancelToken,
        ExecutionConfig,
        Preference,
        PrepareConfig,
        Priority,
        ProgressEvent,
    )
    from penstock.hal.device import HAL_VERSION, Device, DeviceBase
    from penstock.hal.fence import DescriptorFence, EventFence, Fence, as_descriptor
    from penstock.hal.loading import InvalidDevice
    from penstock.hal.prepared import (
        NO_CACHE_REPORT,
        Burst,
        CacheReport,
        PreparedModel,
        PreparedModelBase,
        ReusableExecution,
    )
    from penstock.hal.request import (
        DONE,
        NO_VALUE_ARGUMENT,
        ArgumentCopy,
        ExecutionResult,
        HostMemory,
        Memory,
        NoValue,
        OperationTiming,
        OutputShape,
        PaddedBytes,
        PoolArgument,
        ProvenRequest,
        RemoteResult,
        Request,
        RequestArgument,
        Timing,
        TokenArgument,
    )
    from penstock.hal.validate import (
        check_deadline,
        refuse_unmapped,
        validate_prepare,
        validate_prepare_config,
        validate_request,
        validate_support,
    )

__all__ = [
    "ACCURACY_RANK",
    "BYTE_SIZE_OF_CACHE_TOKEN",
    "DONE",
    "HAL_VERSION",
    "MAX_NUMBER_OF_CACHE_FILES",
    "NO_CACHE_REPORT",
    "NO_TOKEN",
    "NO_VALUE_ARGUMENT",
    "PREFERENCES",
    "PRIORITIES",
    "SUPPORTED",
    "AccuracyClass",
    "ArgumentCopy",
    "Buffer",
    "BufferDesc",
    "BufferRole",
    "Burst",
    "CacheHandle",
    "CacheReport",
    "CancelToken",
    "Capabilities",
    "DescriptorFence",
    "Device",
    "DeviceBase",
    "DeviceType",
    "EventFence",
    "ExecutionConfig",
    "ExecutionResult",
    "Extension",
    "ExtensionAttribute",
    "ExtensionOperandType",
    "Fence",
    "HostMemory",
    "InvalidDevice",
    "Memory",
    "MemoryPreference",
    "NoValue",
    "OperationTiming",
    "OutputShape",
    "PaddedBytes",
    "PerformanceInfo",
    "PoolArgument",
    "Preference",
    "PrepareConfig",
    "PreparedModel",
    "PreparedModelBase",
    "Priority",
    "ProgressEvent",
    "ProvenRequest",
    "RemoteResult",
    "Request",
    "RequestArgument",
    "ReusableExecution",
    "Support",
    "Timing",
    "TokenArgument",
    "as_descriptor",
    "check_deadline",
    "refuse_unmapped",
    "validate_prepare",
    "validate_prepare_config",
    "validate_request",
    "validate_support",
]

__getattr__ = lazily(
    __name__,
    {
        "buffer": "Buffer BufferDesc BufferRole",
        "capabilities": "ACCURACY_RANK SUPPORTED AccuracyClass Capabilities DeviceType Extension "
        "ExtensionAttribute ExtensionOperandType MemoryPreference PerformanceInfo "
        "Support",
        "config": "BYTE_SIZE_OF_CACHE_TOKEN MAX_NUMBER_OF_CACHE_FILES NO_TOKEN PREFERENCES "
        "PRIORITIES CacheHandle CancelToken ExecutionConfig Preference PrepareConfig "
        "Priority ProgressEvent",
        "device": "HAL_VERSION Device DeviceBase",
        "fence": "DescriptorFence EventFence Fence as_descriptor",
        "loading": "InvalidDevice",
        "prepared": "NO_CACHE_REPORT Burst CacheReport PreparedModel PreparedModelBase "
        "ReusableExecution",
        "request": "DONE NO_VALUE_ARGUMENT ArgumentCopy RemoteResult ExecutionResult HostMemory "
        "Memory NoValue OperationTiming OutputShape PaddedBytes PoolArgument ProvenRequest Request "
        "RequestArgument Timing TokenArgument",
        "validate": "check_deadline refuse_unmapped validate_prepare validate_prepare_config "
        "validate_request validate_support",
    },
)
