"""The interface between the runtime and drivers. Imports only `ir` and `errors` of Penstock.

The runtime is above it and drivers are below it. Every argument and result is a frozen struct or a
handle, so that it can cross a process boundary unchanged.
"""

from typing import TYPE_CHECKING, Final

from penstock.facade import lazily

if TYPE_CHECKING:
    from penstock.hal.buffer import (
        Buffer as Buffer,
        BufferDesc as BufferDesc,
        BufferRole as BufferRole,
    )
    from penstock.hal.capabilities import (
        ACCURACY_RANK as ACCURACY_RANK,
        SUPPORTED as SUPPORTED,
        AccuracyClass as AccuracyClass,
        Capabilities as Capabilities,
        DeviceType as DeviceType,
        Extension as Extension,
        ExtensionAttribute as ExtensionAttribute,
        ExtensionOperandType as ExtensionOperandType,
        MemoryPreference as MemoryPreference,
        PerformanceInfo as PerformanceInfo,
        Support as Support,
    )
    from penstock.hal.config import (
        BYTE_SIZE_OF_CACHE_TOKEN as BYTE_SIZE_OF_CACHE_TOKEN,
        MAX_NUMBER_OF_CACHE_FILES as MAX_NUMBER_OF_CACHE_FILES,
        NO_TOKEN as NO_TOKEN,
        PREFERENCES as PREFERENCES,
        PRIORITIES as PRIORITIES,
        CacheHandle as CacheHandle,
        CancelToken as CancelToken,
        ExecutionConfig as ExecutionConfig,
        Preference as Preference,
        PrepareConfig as PrepareConfig,
        Priority as Priority,
        ProgressEvent as ProgressEvent,
        portable_of as portable_of,
    )
    from penstock.hal.device import (
        HAL_VERSION as HAL_VERSION,
        Device as Device,
        DeviceBase as DeviceBase,
    )
    from penstock.hal.fence import (
        DescriptorFence as DescriptorFence,
        EventFence as EventFence,
        Fence as Fence,
        as_descriptor as as_descriptor,
    )
    from penstock.hal.loading import InvalidDevice as InvalidDevice
    from penstock.hal.loss import engine_lost as engine_lost
    from penstock.hal.prepared import (
        NO_CACHE_REPORT as NO_CACHE_REPORT,
        Burst as Burst,
        CacheReport as CacheReport,
        PreparedModel as PreparedModel,
        PreparedModelBase as PreparedModelBase,
        ReusableExecution as ReusableExecution,
    )
    from penstock.hal.request import (
        DONE as DONE,
        NO_VALUE_ARGUMENT as NO_VALUE_ARGUMENT,
        ArgumentCopy as ArgumentCopy,
        ExecutionResult as ExecutionResult,
        HostMemory as HostMemory,
        Memory as Memory,
        NoValue as NoValue,
        OperationTiming as OperationTiming,
        OutputShape as OutputShape,
        PaddedBytes as PaddedBytes,
        PoolArgument as PoolArgument,
        ProvenRequest as ProvenRequest,
        RemoteResult as RemoteResult,
        Request as Request,
        RequestArgument as RequestArgument,
        Timing as Timing,
        TokenArgument as TokenArgument,
    )
    from penstock.hal.stages import stages_of as stages_of
    from penstock.hal.validate import (
        check_deadline as check_deadline,
        refuse_unmapped as refuse_unmapped,
        validate_prepare as validate_prepare,
        validate_prepare_config as validate_prepare_config,
        validate_request as validate_request,
        validate_support as validate_support,
    )

NAMES: Final = {
    "buffer": "Buffer BufferDesc BufferRole",
    "capabilities": "ACCURACY_RANK SUPPORTED AccuracyClass Capabilities DeviceType Extension "
    "ExtensionAttribute ExtensionOperandType MemoryPreference PerformanceInfo "
    "Support",
    "config": "BYTE_SIZE_OF_CACHE_TOKEN MAX_NUMBER_OF_CACHE_FILES NO_TOKEN PREFERENCES "
    "PRIORITIES CacheHandle CancelToken ExecutionConfig Preference PrepareConfig "
    "Priority ProgressEvent portable_of",
    "device": "HAL_VERSION Device DeviceBase",
    "fence": "DescriptorFence EventFence Fence as_descriptor",
    "loading": "InvalidDevice",
    "loss": "engine_lost",
    "prepared": "NO_CACHE_REPORT Burst CacheReport PreparedModel PreparedModelBase "
    "ReusableExecution",
    "request": "DONE NO_VALUE_ARGUMENT ArgumentCopy RemoteResult ExecutionResult HostMemory "
    "Memory NoValue OperationTiming OutputShape PaddedBytes PoolArgument ProvenRequest Request "
    "RequestArgument Timing TokenArgument",
    "stages": "stages_of",
    "validate": "check_deadline refuse_unmapped validate_prepare validate_prepare_config "
    "validate_request validate_support",
}
"""The names of this package, by the module that has them."""

__all__ = list(" ".join(NAMES.values()).split())

__getattr__ = lazily(__name__, NAMES)
