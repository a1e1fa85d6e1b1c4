"""The device: what it claims, and a kernel for each operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.driverkit import KernelDevice, Site, kernel
from penstock.hal import Capabilities, DeviceType, PerformanceInfo
from penstock.ir import DType, NDArray
from penstock_example import fixed

SUMS = {"ADD": np.add, "SUB": np.subtract, "MUL": np.multiply}


class ExampleDevice(KernelDevice):
    """Element-wise arithmetic, RELU, LOGISTIC in float32, and `com.example.fixed`, on the CPU."""

    name = "example"
    # Must change when results may change: with this package, its libraries, the hardware's
    # features.
    version = f"1.0 (numpy {np.__version__})"
    type = DeviceType.CPU
    accuracy = "exact"
    # Measured against the reference device, in round numbers. The claim decides which operations
    # the device gets.
    capabilities = Capabilities(
        performance={"float32": PerformanceInfo(execution_time=0.8, power_usage=0.8)},
        default_performance=None,
        dispatch_ns=10_000,
        extensions=(fixed.EXTENSION,),
    )

    def check(self) -> str | None:
        """Why the device is not usable on this machine, in a sentence; None if it is."""
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
        # Uses the form that cannot overflow for the sign of x.
        small = np.exp(-np.abs(x))
        result: NDArray = np.where(x >= 0, 1 / (1 + small), small / (1 + small))
        return result

    @kernel(fixed.TO_FIXED_KEY, dtypes=["float32", "uint8"])
    def to_fixed(self, site: Site, x: NDArray) -> NDArray:
        scaled = np.ldexp(x.astype(np.float64), fixed.bits_of(site.outputs[0]) or 0)
        down = site.hint(fixed.NAME, fixed.ROUNDING) == b"down"
        rounded = np.floor(scaled) if down else np.rint(scaled)
        # Values beyond 62 bits are clamped and NaN becomes 0, because their casts are undefined.
        limit = float(1 << 62)
        return fixed.array_of(np.clip(np.nan_to_num(rounded), -limit, limit).astype(np.int64))

    @kernel(fixed.TO_FLOAT_KEY, dtypes=["float32", "uint8"])
    def to_float(self, site: Site, x: NDArray) -> NDArray:
        bits = fixed.bits_of(site.inputs[0]) or 0
        return np.ldexp(fixed.integers(x).astype(np.float64), -bits).astype(np.float32)

    def refuse(self, site: Site) -> str:
        """Why an operation of valid types cannot be computed; "" if it can."""
        if site.operation.key in {fixed.TO_FIXED_KEY, fixed.TO_FLOAT_KEY}:
            return _refuse_conversion(site)
        ranks = [len(o.shape or ()) for o in site.inputs if o is not None]
        return f"operands have {max(ranks)} dimensions, and the device 6" if max(ranks) > 6 else ""


def _refuse_conversion(site: Site) -> str:
    """Only the driver knows the form of its extension's operations, so it must check everything."""
    if len(site.inputs) != 1 or len(site.outputs) != 1:
        return (
            f"a conversion has 1 input and 1 output, not {len(site.inputs)} and {len(site.outputs)}"
        )
    source, target = site.inputs[0], site.outputs[0]
    fix, real = (target, source) if site.operation.key == fixed.TO_FIXED_KEY else (source, target)
    if real is None or real.dtype is not DType.FLOAT32:
        return "a conversion is between float32 and FIXED_TENSOR"
    if fix is None or fixed.bits_of(fix) is None:
        return (
            "a FIXED_TENSOR has data of 4 bytes: how many bits are behind the point, up to "
            f"{fixed.MOST_BITS}"
        )
    if fix.shape is None or real.shape is None or fix.shape[:-1] != real.shape:
        return f"shapes differ: {fix.shape} and {real.shape}"
    return ""
