"""The narrow waist: what a driver is. Imports `ir` and `errors` and nothing else of Penstock.

Everything above it (the runtime) and below it (drivers) meets here. Every argument and result is
a frozen struct or a handle and could cross a process boundary as it is.
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
        ProgressCallback,
        ProgressEvent,
    )
    from penstock.hal.constants import check_constants, refuse_unmapped
    from penstock.hal.descriptors import (
        DescriptorFence,
        FenceSignal,
        as_descriptor,
        fence_pair,
        status_of,
    )
    from penstock.hal.device import (
        HAL_VERSION,
        Device,
        DeviceBase,
        mappable_kinds,
        preferred_memory,
    )
    from penstock.hal.extensions import Extension, ExtensionAttribute, ExtensionOperandType
    from penstock.hal.fence import EventFence, Fence, FenceStatus, MergedFence
    from penstock.hal.invalid import InvalidBuffer, InvalidDevice, InvalidPreparedModel
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
        NO_TIMING,
        NO_VALUE_ARGUMENT,
        ArgumentCopy,
        CarriedResult,
        ExecutionResult,
        HostMemory,
        Memory,
        NoValue,
        OperationTiming,
        OutputShape,
        PaddedBytes,
        PoolArgument,
        ProvenRequest,
        Request,
        RequestArgument,
        Timing,
        TokenArgument,
    )
    from penstock.hal.roles import Allocation, ManagedRole, validate_allocate
    from penstock.hal.validate import (
        check_deadline,
        validate_fenced,
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
    "NO_TIMING",
    "NO_TOKEN",
    "NO_VALUE_ARGUMENT",
    "PREFERENCES",
    "PRIORITIES",
    "SUPPORTED",
    "AccuracyClass",
    "Allocation",
    "ArgumentCopy",
    "Buffer",
    "BufferDesc",
    "BufferRole",
    "Burst",
    "CacheHandle",
    "CacheReport",
    "CancelToken",
    "Capabilities",
    "CarriedResult",
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
    "FenceSignal",
    "FenceStatus",
    "HostMemory",
    "InvalidBuffer",
    "InvalidDevice",
    "InvalidPreparedModel",
    "ManagedRole",
    "Memory",
    "MemoryPreference",
    "MergedFence",
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
    "ProgressCallback",
    "ProgressEvent",
    "ProvenRequest",
    "Request",
    "RequestArgument",
    "ReusableExecution",
    "Support",
    "Timing",
    "TokenArgument",
    "as_descriptor",
    "check_constants",
    "check_deadline",
    "fence_pair",
    "mappable_kinds",
    "preferred_memory",
    "refuse_unmapped",
    "status_of",
    "validate_allocate",
    "validate_fenced",
    "validate_prepare",
    "validate_prepare_config",
    "validate_request",
    "validate_support",
]

__getattr__ = lazily(
    __name__,
    {
        "buffer": "Buffer BufferDesc BufferRole",
        "capabilities": "ACCURACY_RANK SUPPORTED AccuracyClass Capabilities DeviceType "
        "MemoryPreference PerformanceInfo Support",
        "config": "BYTE_SIZE_OF_CACHE_TOKEN MAX_NUMBER_OF_CACHE_FILES NO_TOKEN PREFERENCES PRIORITIES CacheHandle CancelToken ExecutionConfig Preference PrepareConfig Priority ProgressCallback ProgressEvent",
        "constants": "check_constants refuse_unmapped",
        "descriptors": "DescriptorFence FenceSignal as_descriptor fence_pair status_of",
        "device": "HAL_VERSION Device DeviceBase mappable_kinds preferred_memory",
        "extensions": "Extension ExtensionAttribute ExtensionOperandType",
        "fence": "EventFence Fence FenceStatus MergedFence",
        "invalid": "InvalidBuffer InvalidDevice InvalidPreparedModel",
        "prepared": "NO_CACHE_REPORT Burst CacheReport PreparedModel PreparedModelBase ReusableExecution",
        "request": "ArgumentCopy CarriedResult DONE NO_TIMING NO_VALUE_ARGUMENT ExecutionResult HostMemory Memory NoValue OperationTiming OutputShape PaddedBytes PoolArgument ProvenRequest Request RequestArgument Timing TokenArgument",
        "roles": "Allocation ManagedRole validate_allocate",
        "validate": "check_deadline validate_fenced validate_prepare validate_prepare_config validate_request validate_support",
    },
)
