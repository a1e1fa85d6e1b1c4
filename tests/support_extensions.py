"""A driver that offers an NNAPI extension: Fibonacci numbers, of a scalar count or of a float,
plain or quantised.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from penstock import hal
from penstock.driverkit import KernelDevice, Site, kernel
from penstock.driverkit.kernel_device import PreparedKernels
from penstock.errors import GeneralFailure
from penstock.ir import DType, Model, NDArray, Operand

NAME: Final = "com.example.fibonacci"
COUNT, QUANT64 = 0, 1
"""Operand types: a scalar of 64 bits, and a tensor of 64-bit numbers with a scale and a
zero point.
"""

SERIES, HINTS = 0, 7
"""Operations: the first n Fibonacci numbers, and what attributes the driver was given."""

EXTENSION: Final = hal.Extension(
    NAME,
    (hal.ExtensionOperandType(COUNT, 8, is_tensor=False), hal.ExtensionOperandType(QUANT64, 8)),
)
OTHER: Final = "com.example.other"


def quantization(scale: float, zero_point: int) -> bytes:
    """The extension data of a QUANT64."""
    return struct.pack("<dq", scale, zero_point)


def series(count: int) -> NDArray:
    """The first *count* Fibonacci numbers."""
    numbers = [1, 1]
    while len(numbers) < count:
        numbers.append(numbers[-1] + numbers[-2])
    return np.array(numbers[:count], np.float64)


class Fibonacci(KernelDevice):
    """The extension, and ADD in float32."""

    name = "fibonacci"
    version = "1"
    type = hal.DeviceType.ACCELERATOR
    capabilities = hal.Capabilities(extensions=(EXTENSION, hal.Extension(OTHER)))
    seen: ClassVar[list[tuple[hal.ExtensionAttribute, ...]]] = []
    """The attributes of each compile and each run, in order."""

    def __init__(self, name: str = "fibonacci", extensions: Sequence[hal.Extension] = ()) -> None:
        self.name = name
        if extensions:
            self.capabilities = hal.Capabilities(extensions=tuple(extensions))

    def prepare_model(self, model: Model, config: hal.PrepareConfig) -> PreparedKernels:
        self.seen.append(config.attributes)
        made = super().prepare_model(model, config)
        return Noted(self, made.model, made._sites)

    @kernel("ADD")
    def add(self, site: Site, x: NDArray, y: NDArray) -> NDArray:
        added: NDArray = x + y
        return added

    @kernel(f"EXTENSION:{NAME}:{SERIES}", dtypes=["float32", "uint8"])
    def fibonacci(self, site: Site, n: NDArray) -> NDArray:
        count = int(n.view(np.int64)[0] if n.dtype == np.uint8 else n[0])
        if count < 1:
            raise GeneralFailure(f"{count} Fibonacci numbers")
        numbers = series(count)
        if site.outputs[0].extension is None:
            return numbers.astype(np.float32)
        scale, zero_point = struct.unpack("<dq", site.outputs[0].extension.data)
        stored = np.rint(numbers / scale).astype(np.int64) + zero_point
        made: NDArray = stored[:, None].view(np.uint8)
        return made

    @kernel(f"EXTENSION:{NAME}:{HINTS}")
    def hints(self, site: Site, x: NDArray) -> NDArray:
        """The lengths of the values of attributes 0 and 1, behind x."""
        found = [len(site.hint(NAME, code) or b"") for code in (0, 1)]
        return np.array([x[0], *found], np.float32)

    def refuse(self, site: Site) -> str:
        if site.operation.type != "EXTENSION" or site.attributes.integer("code") == HINTS:
            return ""
        if len(site.inputs) != 1 or len(site.outputs) != 1:
            return "the series is of one number"
        source, target = site.inputs[0], site.outputs[0]
        if source is None or not (source.dtype is DType.FLOAT32 or _is(source, COUNT)):
            return "the count is a float or a COUNT"
        if target.dtype is not DType.FLOAT32 and not (
            _is(target, QUANT64) and len(target.extension.data if target.extension else b"") == 16
        ):
            return "the series is of floats or QUANT64 with its parameters"
        return ""


class Noted(PreparedKernels):
    """Notes the attributes of its runs."""

    def execute(self, request: hal.Request, config: hal.ExecutionConfig) -> hal.ExecutionResult:
        Fibonacci.seen.append(config.attributes)
        return super().execute(request, config)


def _is(operand: Operand, code: int) -> bool:
    kind = operand.extension
    return kind is not None and (kind.extension, kind.code) == (NAME, code)


def create() -> Fibonacci:
    """For a host process of its own."""
    return Fibonacci()
