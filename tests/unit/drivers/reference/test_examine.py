"""What the reference driver says of operations that contradict themselves: a reason, and no
exception.
"""

from __future__ import annotations

import numpy as np

from penstock.drivers.reference import ReferenceDevice
from penstock.ir import DType, ModelBuilder, Quantization

STEP = Quantization((0.5,), (0,))


def test_inconsistent_weights_are_a_reason_not_an_exception() -> None:
    """An integer LSTM, the recurrent weights of three gates of which are vectors."""
    builder = ModelBuilder()

    def weights(*shape: int) -> int:
        return builder.constant(np.zeros(shape, np.int8), "", STEP)

    data = builder.input(DType.INT8, (2, 3), "data", STEP)
    states = [
        builder.input(DType.INT8, (2, 5), "output", STEP),
        builder.input(DType.INT16, (2, 4), "cell", Quantization((2.0**-11,), (0,))),
    ]
    recurrent = [weights(5), weights(4, 5), weights(5), weights(5)]
    biases = [builder.constant(np.zeros(4, np.int32)) for _ in range(4)]
    inputs = [
        *(data, *[weights(4, 3) for _ in range(4)], *recurrent, None, None, None, *biases),
        *(weights(5, 4), None, *states, None, None, None, None),
    ]
    made = builder.operation(
        "LSTM",
        inputs,
        [(DType.INT8, (2, 5), STEP)],
        {"intermediate_scales": (0.1,) * 5, "intermediate_zero_points": (0,) * 5},
    )
    (support,) = ReferenceDevice().supported_operations(builder.build(outputs=made))
    assert not support.supported
    assert support.reason.startswith("not computable as it stands: ")
