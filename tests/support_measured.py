"""What tests of measured runs share: a network of several layers, and what receipts say of its
kernels.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.compilation.step_receipt import KernelReceipt, StepReceipt
from penstock.ir import DType, Model, ModelBuilder

F32: Final = DType.FLOAT32
IMAGE: Final = (1, 48, 48, 8)
X: Final = np.random.default_rng(3).standard_normal(IMAGE).astype(np.float32)
LAYERS: Final = ("CONV_2D", "DEPTHWISE_CONV_2D", "ADD", "FULLY_CONNECTED", "SOFTMAX")
"""What engines compute in kernels; RELU goes into the addition before it, and RESHAPE moves
nothing.
"""


def network() -> Model:
    """A convolution, a depthwise one, their sum through RELU, and a classifier: seven operations,
    each with a name.
    """
    rng = np.random.default_rng(11)
    builder = ModelBuilder()

    def filters(*shape: int) -> int:
        return builder.constant((rng.standard_normal(shape) / 8).astype(np.float32))

    def add(
        kind: str, inputs: list[int | None], shape: tuple[int, ...], **attributes: object
    ) -> int:
        (made,) = builder.operation(kind, inputs, [(F32, shape)], attributes)  # type: ignore[arg-type]  # any attributes
        return made

    x = builder.input(F32, IMAGE, "x")
    window: dict[str, object] = {
        "padding": "SAME", "stride_w": 1, "stride_h": 1, "fused_activation_function": "RELU6",
    }  # fmt: skip
    conv = add("CONV_2D", [x, filters(8, 3, 3, 8), filters(8)], IMAGE, **window)
    depth = add(
        "DEPTHWISE_CONV_2D", [conv, filters(1, 3, 3, 8), filters(8)], IMAGE, depth_multiplier=1,
            **window
    )  # fmt: skip
    total = add("RELU", [add("ADD", [conv, depth], IMAGE)], IMAGE)
    flat = add("RESHAPE", [total, builder.constant(np.array([1, 18432], np.int32))], (1, 18432))
    scores = add("FULLY_CONNECTED", [flat, filters(10, 18432), None], (1, 10))
    return builder.build([add("SOFTMAX", [scores], (1, 10), beta=1.0)])


def types_of(kernel: KernelReceipt) -> tuple[str, ...]:
    """The types of the operations that *kernel* computes."""
    return tuple(name.split()[0] for name in kernel.names)


def lies_within(step: StepReceipt) -> bool:
    """Whether every kernel began while the step ran, in order."""
    starts = [kernel.start_ns for kernel in step.kernels]
    return starts == sorted(starts) and all(
        0 <= start - step.start_ns <= step.wall_ns for start in starts
    )
