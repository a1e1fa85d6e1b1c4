"""Penstock: one neural network, every accelerator a machine has.

    import penstock

    with penstock.compile("net.tflite") as compiled:
        outputs = compiled(x)

Submodules load when their names are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.logs import keep_quiet

if TYPE_CHECKING:
    from penstock.compilation import Receipt
    from penstock.errors import PenstockError
    from penstock.execution import CompiledModel, Outputs, State
    from penstock.hal import CancelToken, ProgressEvent
    from penstock.ir import Model
    from penstock.loaders import load
    from penstock.partitioning.plan import ExecutionPlan
    from penstock.partitioning.policy import Policy
    from penstock.runtime.compiling import compile_model as compile  # noqa: A004  # the public name
    from penstock.runtime.discovery import DeviceInfo, devices

__version__ = "0.1.0"

__all__ = [
    "CancelToken",
    "CompiledModel",
    "DeviceInfo",
    "ExecutionPlan",
    "Model",
    "Outputs",
    "PenstockError",
    "Policy",
    "ProgressEvent",
    "Receipt",
    "State",
    "__version__",
    "compile",
    "devices",
    "load",
]

_HOMES = {
    "CancelToken": "penstock.hal",
    "CompiledModel": "penstock.execution",
    "DeviceInfo": "penstock.runtime.discovery",
    "ExecutionPlan": "penstock.partitioning.plan",
    "Model": "penstock.ir",
    "Outputs": "penstock.execution",
    "PenstockError": "penstock.errors",
    "Policy": "penstock.partitioning.policy",
    "ProgressEvent": "penstock.hal",
    "Receipt": "penstock.compilation",
    "State": "penstock.execution",
    "compile": "penstock.runtime.compiling:compile_model",
    "devices": "penstock.runtime.discovery",
    "load": "penstock.loaders",
}

_PUBLIC: Final = (
    "cache errors export hal ir loaders memory nnapi partitioning runtime testing tflite"
)
_SUBMODULES: Final = frozenset(_PUBLIC.split())
"""Public submodules, loaded on first use. Not part of `import *`."""

keep_quiet()


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _SUBMODULES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from penstock.facade import load

    if name in _SUBMODULES:
        return load(f"penstock.{name}")
    module, _, attribute = _HOMES[name].partition(":")
    value = getattr(load(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES})
