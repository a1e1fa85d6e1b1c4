"""TensorFlow Lite's delegate API. Experimental until 1.0: names and meanings may still change.

import penstock.delegates as delegates

class MyDelegate(delegates.SimpleDelegate): ...

interpreter = penstock.tflite.Interpreter("net.tflite", experimental_delegates=[MyDelegate()])
"""

from __future__ import annotations

from penstock.delegates.api import (
    NULL_BUFFER_HANDLE,
    Delegate,
    DelegateFlags,
    DelegateNode,
    DelegateParams,
    DelegateRegistration,
    Registration,
)
from penstock.delegates.codes import BuiltinOperator
from penstock.delegates.context import DelegateContext, DelegateTensor, PartitionModel
from penstock.delegates.coreml import CoreMLDelegate
from penstock.delegates.driver import DriverDelegate
from penstock.delegates.gpu import GpuDelegate, GpuExperimentalFlags
from penstock.delegates.hexagon import HexagonDelegate
from penstock.delegates.native import DelegateNotLoaded, NativeDelegate, load_delegate
from penstock.delegates.nnapi import NnapiDelegate
from penstock.delegates.simple import DelegateKernel, SimpleDelegate

__all__ = [
    "NULL_BUFFER_HANDLE",
    "BuiltinOperator",
    "CoreMLDelegate",
    "Delegate",
    "DelegateContext",
    "DelegateFlags",
    "DelegateKernel",
    "DelegateNode",
    "DelegateNotLoaded",
    "DelegateParams",
    "DelegateRegistration",
    "DelegateTensor",
    "DriverDelegate",
    "GpuDelegate",
    "GpuExperimentalFlags",
    "HexagonDelegate",
    "NativeDelegate",
    "NnapiDelegate",
    "PartitionModel",
    "Registration",
    "SimpleDelegate",
    "load_delegate",
]
