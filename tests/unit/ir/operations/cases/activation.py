"""Cases of activation operations."""

from __future__ import annotations

from typing import Final

from penstock.ir import DType
from tests.unit.ir.operations.cases.case import agreed, refused
from tests.unit.ir.operations.single import Output, q, x, zeros

CASES: Final = (
    agreed("RELU", [x(2, 3)], (2, 3)),
    agreed("RELU6", [x(0, 3)], (0, 3)),
    agreed("RELU_N1_TO_1", [x()], ()),
    agreed("RELU_0_TO_1", [x(2, 3)], (2, 3)),
    agreed("TANH", [x(2, 3)], (2, 3)),
    agreed("LOGISTIC", [x(2, 3)], (2, 3)),
    agreed("ELU", [x(2, 3)], (2, 3)),
    agreed("HARD_SWISH", [x(2, 3)], (2, 3)),
    agreed("LEAKY_RELU", [x(2, 3)], (2, 3), alpha=0.1),
    agreed("GELU", [x(2, 3)], (2, 3), approximate=True),
    agreed("SOFTMAX", [x(1, 2, 3, 4, 5)], (1, 2, 3, 4, 5), beta=1.0),
    refused("SOFTMAX", [x()], beta=1.0),
    agreed("LOG_SOFTMAX", [x(2, 3)], (2, 3)),
    agreed("L2_NORMALIZATION", [x(1, 2, 3, 4, 5)], (1, 2, 3, 4, 5)),
    refused("L2_NORMALIZATION", [x()]),
    agreed("LOCAL_RESPONSE_NORMALIZATION", [x(1, 2, 3, 4)], (1, 2, 3, 4), radius=1),
    refused("LOCAL_RESPONSE_NORMALIZATION", [x(2, 3, 4)], radius=1),
    agreed("PRELU", [x(2, 3), zeros(3)], (2, 3)),
    refused("PRELU", [x(2, 3), zeros(2)]),
    refused("PRELU", [x(3), zeros(2, 3)]),
    agreed("QUANTIZE", [x(2, 3)], (2, 3), outputs=[Output(DType.INT8, None, q(0.5))]),
    agreed("DEQUANTIZE", [x(2, 3, dtype=DType.INT8, q=q(0.5))], (2, 3)),
    agreed("FAKE_QUANT", [x(2, 3)], (2, 3), min=-1.0, max=1.0, num_bits=8),
)
