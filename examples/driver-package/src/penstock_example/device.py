"""The device: what it claims, and a kernel for each operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.hal import Capabilities, DeviceType, PerformanceInfo
from penstock.ir import NDArray
from penstock.kernels import KernelDevice, Site, kernel

SUMS = {"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply}


class ExampleDevice(KernelDevice):
    """Element-wise arithmetic, RELU and LOGISTIC in float32, on the processor."""

    name = "example"
    # Changes with whatever changes a result: this package, its libraries, the hardware's features.
    version = f"1.0 (numpy {np.__version__})"
    type = DeviceType.CPU
    accuracy = "exact"
    # Measured against the reference device, in round numbers: what is claimed here decides what it gets.
    capabilities = Capabilities(
        performance={"float32": PerformanceInfo(execution_time=0.8, power_usage=0.8)},
        default_performance=None,
        dispatch_ns=10_000,
    )

    def check(self) -> str | None:
        """Why the device cannot work on this machine, in a sentence; None: it can."""
        return None

    @kernel("ADD", "SUB", "MUL")
    def arithmetic(self, site: Site, x: NDArray, y: NDArray) -> NDArray:
        result: Any = SUMS[site.operation.type](x, y)
        return np.asarray(result)

    @kernel("RELU")
    def relu(self, site: Site, x: NDArray) -> NDArray:
        return np.maximum(x, np.float32(0))

    @kernel("LOGISTIC")
    def logistic(self, site: Site, x: NDArray) -> NDArray:
        # Of the two forms the one that cannot overflow.
        small = np.exp(-np.abs(x))
        result: NDArray = np.where(x >= 0, 1 / (1 + small), small / (1 + small))
        return result

    def refuse(self, site: Site) -> str:
        """Why an operation cannot be computed, where its types alone do not say so; empty: it can."""
        ranks = [len(o.shape or ()) for o in site.inputs if o is not None]
        return f"operands have {max(ranks)} dimensions, and the device 6" if max(ranks) > 6 else ""
