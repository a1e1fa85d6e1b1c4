"""Single float32 operations that several drivers over an engine take, and how their results are
judged.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import Final

import numpy as np

from penstock.hal import AccuracyClass, Device
from penstock.ir import NDArray
from tests.golden.comparison import FLOAT_SHARE
from tests.support_operations import Given, OneOperation, operation, run_on

IMAGE: Final = (1, 7, 6, 5)
REDUCTIONS: Final = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN")
SIZES: Final = ((14, 12), (3, 4), (11, 7), (1, 1), (7, 6))
"""Heights and widths that a picture is resized to."""


def numbers(*shape: int, seed: int = 7) -> NDArray:
    drawn: NDArray = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return drawn


def whole(*values: int) -> NDArray:
    return np.array(values, np.int32)


def scalar(value: int) -> NDArray:
    return np.array(value, np.int32)


def unary() -> list[OneOperation]:
    kinds = [
        "RELU",
        "RELU6",
        "RELU_N1_TO_1",
        "RELU_0_TO_1",
        "LOGISTIC",
        "TANH",
        "HARD_SWISH",
        "ABS",
        "NEG",
        "EXP",
        "SQUARE",
        "ELU",
        "SIN",
        "COS",
        "SIGN",
        "FLOOR",
        "CEIL",
        "ROUND",
        "GELU",
    ]
    made = [operation(kind.lower(), kind, [(3, 17)], [(3, 17)]) for kind in kinds]
    positive = [
        operation(f"{kind.lower()}_of_squares", kind, [numbers(40) ** 2 + 0.01], [(40,)])
        for kind in ("SQRT", "RSQRT", "LOG")
    ]
    made.append(operation("gelu_tanh", "GELU", [(3, 17)], [(3, 17)], {"approximate": True}))
    shapes: list[tuple[int, ...]] = [(), (1,), (2, 3, 4), IMAGE, (2, 1, 3, 2, 2)]
    ranks = [operation(f"relu_of_rank_{len(s)}", "RELU", [s], [s]) for s in shapes]
    leaky = operation("leaky_relu", "LEAKY_RELU", [IMAGE], [IMAGE], {"alpha": 0.2})
    prelu = [
        operation(f"prelu_{'x'.join(map(str, alpha.shape))}", "PRELU", [IMAGE, alpha], [IMAGE])
        for alpha in (numbers(5), numbers(1, 1, 5), numbers(7, 6, 5))
    ]
    return [*made, *positive, *ranks, leaky, *prelu]


def binary() -> list[OneOperation]:
    kinds = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")
    plain = [operation(kind.lower(), kind, [IMAGE, IMAGE], [IMAGE]) for kind in kinds]
    broadcast = [
        operation("add_rank_1", "ADD", [IMAGE, numbers(5)], [IMAGE]),
        operation("mul_scalar", "MUL", [IMAGE, np.array(2.5, np.float32)], [IMAGE]),
        operation("sub_both_ways", "SUB", [(2, 1, 3), (4, 1)], [(2, 4, 3)]),
        operation("add_rank_3", "ADD", [IMAGE, numbers(7, 1, 5)], [IMAGE]),
    ]
    fused = [
        operation(
            f"{kind.lower()}_{a.lower()}", kind, [IMAGE, IMAGE], [IMAGE],
                {"fused_activation_function": a}
        )
        for kind in ("ADD", "MUL")
        for a in ("RELU", "RELU6", "RELU_N1_TO_1")
    ]  # fmt: skip
    power = operation("pow", "POW", [numbers(3, 9) ** 2, (3, 9)], [(3, 9)])
    return [*plain, *broadcast, *fused, power]


def conv(
    name: str,
    image: tuple[int, ...],
    filters: tuple[int, ...],
    out: tuple[int, ...],
    kind: str = "CONV_2D",
    *,
    bias: bool = True,
    **attributes: object,
) -> OneOperation:
    given = {"stride_h": 1, "stride_w": 1, "padding": "SAME", **attributes}
    biases = numbers(out[3]) if bias else None
    return operation(name, kind, [image, numbers(*filters), biases], [out], given)


def convolutions() -> list[OneOperation]:
    depthwise = "DEPTHWISE_CONV_2D"
    return [
        conv("conv", IMAGE, (8, 3, 3, 5), (1, 7, 6, 8)),
        conv("conv_valid", IMAGE, (8, 3, 2, 5), (1, 5, 5, 8), padding="VALID"),
        conv("conv_stride_2", IMAGE, (4, 3, 3, 5), (1, 4, 3, 4), stride_h=2, stride_w=2),
        conv("conv_strides_differ", IMAGE, (4, 3, 3, 5), (1, 7, 2, 4), stride_w=3),
        conv("conv_dilated", (1, 9, 9, 3), (4, 3, 3, 3), (1, 9, 9, 4), dilation_h_factor=2,
            dilation_w_factor=3),
        conv("conv_without_bias", IMAGE, (4, 1, 1, 5), (1, 7, 6, 4), bias=False),
        conv("conv_relu6", IMAGE, (4, 3, 3, 5), (1, 7, 6, 4), fused_activation_function="RELU6"),
        conv("conv_of_a_batch", (3, 5, 5, 4), (4, 3, 3, 4), (3, 5, 5, 4)),
        conv("conv_in_groups", (1, 6, 6, 8), (6, 3, 3, 4), (1, 6, 6, 6)),
        conv("conv_even_extent", IMAGE, (4, 2, 4, 5), (1, 7, 6, 4)),
        conv("depthwise", IMAGE, (1, 3, 3, 5), (1, 7, 6, 5), depthwise),
        conv("depthwise_multiplied", IMAGE, (1, 3, 3, 15), (1, 7, 6, 15), depthwise,
            depth_multiplier=3),
        conv("depthwise_stride_2", IMAGE, (1, 3, 3, 5), (1, 4, 3, 5), depthwise, stride_h=2,
            stride_w=2,
             fused_activation_function="RELU"),
        conv("depthwise_of_one_channel", (1, 7, 6, 1), (1, 3, 3, 4), (1, 7, 6, 4), depthwise,
            padding="SAME"),
    ]  # fmt: skip


def computed_filters() -> list[OneOperation]:
    """Filters and biases that are inputs, as those that a network dequantises from float16."""
    steps = {"stride_h": 1, "stride_w": 1, "padding": "SAME"}
    return [
        operation("conv_of_inputs", "CONV_2D", [IMAGE, (4, 3, 3, 5), (4,)], [(1, 7, 6, 4)], steps),
        operation("depthwise_of_inputs", "DEPTHWISE_CONV_2D", [IMAGE, (1, 3, 3, 10), (10,)],
            [(1, 7, 6, 10)], steps),
        operation("fully_connected_of_inputs", "FULLY_CONNECTED", [(3, 20), (7, 20), (7,)],
            [(3, 7)]),
        operation("transpose_conv_of_inputs", "TRANSPOSE_CONV",
            [whole(1, 8, 10, 6), (6, 3, 3, 3), (1, 4, 5, 3), (6,)],
                  [(1, 8, 10, 6)], {"stride_h": 2, "stride_w": 2, "padding": "SAME"}),
    ]  # fmt: skip


def transposed() -> list[OneOperation]:
    made = []
    for name, image, filters, out, stride, padding, bias in (
        ("same", (1, 4, 5, 3), (6, 3, 3, 3), (1, 8, 10, 6), 2, "SAME", True),
        ("valid", (1, 4, 5, 3), (6, 3, 3, 3), (1, 9, 11, 6), 2, "VALID", False),
        ("odd", (1, 4, 5, 3), (2, 2, 2, 3), (1, 7, 9, 2), 2, "SAME", True),
        ("beyond", (1, 3, 3, 2), (2, 2, 2, 2), (1, 9, 9, 2), 3, "SAME", False),
        ("stride_1", (1, 4, 5, 3), (4, 4, 4, 3), (1, 4, 5, 4), 1, "SAME", False),
    ):
        attributes = {"stride_h": stride, "stride_w": stride, "padding": padding}
        given: list[Given] = [
            whole(*out),
            numbers(*filters),
            image,
            numbers(filters[0]) if bias else None,
        ]
        made.append(operation(f"transpose_conv_{name}", "TRANSPOSE_CONV", given, [out], attributes))
    return made


def transposed_with_bias() -> list[OneOperation]:
    """MediaPipe's operation: padding and strides as three integers."""
    made = []
    for out, filters, stride in (((1, 8, 10, 6), (6, 3, 3, 3), 2), ((1, 4, 5, 6), (6, 2, 2, 3), 1)):
        attributes = {
            "custom_code": "Convolution2DTransposeBias",
            "custom_options": struct.pack("<3i", 1, stride, stride),
        }
        given: list[Given] = [(1, 4, 5, 3), numbers(*filters), numbers(6)]
        name = f"transpose_conv_with_bias_{stride}"
        made.append(operation(name, "CUSTOM", given, [out], attributes))
    return made


def pools(*kinds: str) -> list[OneOperation]:
    made = []
    for kind in kinds:
        for name, out, extra in (
            ("same", (1, 7, 6, 5), {}),
            ("valid", (1, 5, 4, 5), {"padding": "VALID"}),
            ("stride_2", (1, 4, 3, 5), {"stride_h": 2, "stride_w": 2}),
            ("relu", (1, 7, 6, 5), {"fused_activation_function": "RELU"}),
        ):
            attributes: dict[str, object] = {
                "padding": "SAME", "stride_h": 1, "stride_w": 1, "filter_height": 3,
                    "filter_width": 3, **extra
            }  # fmt: skip
            made.append(operation(f"{kind.lower()}_{name}", kind, [IMAGE], [out], attributes))
    return made


def resizes(*sizes: tuple[int, int]) -> list[OneOperation]:
    """To the *sizes* (height, width)."""
    made = []
    for kind in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        for height, width in sizes:
            for mode in ({}, {"align_corners": True}, {"half_pixel_centers": True}):
                name = f"{kind.lower()}_{height}x{width}_{'_'.join(mode) or 'plain'}"
                size = whole(height, width)
                made.append(operation(name, kind, [IMAGE, size], [(1, height, width, 5)], mode))
    return made


def blocks() -> list[OneOperation]:
    wide, deep, by = (1, 4, 6, 3), (1, 2, 3, 12), {"block_size": 2}
    return [
        operation("space_to_depth", "SPACE_TO_DEPTH", [wide], [deep], by),
        operation("depth_to_space", "DEPTH_TO_SPACE", [deep], [wide], by),
    ]


def matrices() -> list[OneOperation]:
    full = "FULLY_CONNECTED"
    keep = {"keep_num_dims": True}
    return [
        operation("fully_connected", full, [(3, 20), numbers(7, 20), numbers(7)], [(3, 7)]),
        operation("fully_connected_without_bias", full, [(1, 20), numbers(7, 20), None], [(1, 7)]),
        operation("fully_connected_of_rank_4", full, [(1, 2, 2, 5), numbers(7, 20), numbers(7)],
            [(1, 7)]),
        operation("fully_connected_keeping_dims", full, [(2, 3, 20), numbers(7, 20), numbers(7)],
            [(2, 3, 7)], keep),
        operation("fully_connected_relu", full, [(3, 20), numbers(7, 20), numbers(7)], [(3, 7)],
                  {"fused_activation_function": "RELU"}),
        operation("batch_matmul", "BATCH_MATMUL", [(2, 3, 4), (2, 4, 5)], [(2, 3, 5)]),
        operation("batch_matmul_turned", "BATCH_MATMUL", [(2, 4, 3), (2, 5, 4)], [(2, 3, 5)],
                  {"adj_x": True, "adj_y": True}),
        operation("batch_matmul_broadcast", "BATCH_MATMUL", [(2, 3, 4), numbers(4, 5)],
            [(2, 3, 5)]),
        operation("softmax", "SOFTMAX", [(3, 11)], [(3, 11)], {"beta": 1.0}),
        operation("softmax_beta", "SOFTMAX", [(2, 3, 11)], [(2, 3, 11)], {"beta": 0.3}),
        operation("softmax_of_rank_4", "SOFTMAX", [IMAGE], [IMAGE], {"beta": 1.0}),
        operation("softmax_of_rank_1", "SOFTMAX", [(9,)], [(9,)], {"beta": 1.0}),
    ]  # fmt: skip


def reductions(*kinds: str) -> list[OneOperation]:
    made = []
    for kind in kinds:
        for axes, keep, out in (
            ((1, 2), False, (1, 5)),
            ((1, 2), True, (1, 1, 1, 5)),
            ((-1,), False, (1, 7, 6)),
            ((1,), False, (1, 6, 5)),
            ((0, 1, 2, 3), False, ()),
        ):
            name = f"{kind.lower()}_{'_'.join(map(str, axes))}_{'keep' if keep else 'drop'}"
            made.append(operation(name, kind, [IMAGE, whole(*axes)], [out], {"keep_dims": keep}))
    return made


def normalizations() -> list[OneOperation]:
    local = "LOCAL_RESPONSE_NORMALIZATION"
    made = [operation("l2", "L2_NORMALIZATION", [(3, 7)], [(3, 7)])]
    for radius, beta, depth in ((2, 0.75, 16), (1, 0.5, 5), (5, 1.0, 5), (0, 0.3, 4)):
        attributes = {"radius": radius, "bias": 1.5, "alpha": 0.2, "beta": beta}
        shape = (1, 6, 7, depth)
        made.append(operation(f"local_{radius}_{beta}", local, [shape], [shape], attributes))
    return made


def structure() -> list[OneOperation]:
    pads = np.array([[0, 0], [1, 2], [0, 3], [1, 0]], np.int32)
    five = np.array([-5.0], np.float32)
    return [
        operation("reshape", "RESHAPE", [IMAGE, whole(6, -1)], [(6, 35)]),
        operation("squeeze", "SQUEEZE", [(1, 7, 1, 5)], [(7, 5)]),
        operation("expand_dims", "EXPAND_DIMS", [(7, 5), scalar(1)], [(7, 1, 5)]),
        operation("transpose", "TRANSPOSE", [IMAGE, whole(3, 0, 2, 1)], [(5, 1, 6, 7)]),
        operation("transpose_to_last", "TRANSPOSE", [(2, 3, 5, 4), whole(0, 2, 3, 1)],
            [(2, 5, 4, 3)]),
        operation("transpose_to_last_of_one", "TRANSPOSE", [(2, 1, 5, 4), whole(0, 2, 3, 1)],
            [(2, 5, 4, 1)]),
        operation("transpose_rank_2", "TRANSPOSE", [(7, 5), whole(1, 0)], [(5, 7)]),
        operation("concatenation", "CONCATENATION", [IMAGE, IMAGE, numbers(*IMAGE)],
            [(1, 7, 6, 15)], {"axis": 3}),
        operation("concatenation_from_behind", "CONCATENATION", [(2, 3), (4, 3)], [(6, 3)],
            {"axis": -2}),
        operation("pack", "PACK", [(2, 3), (2, 3)], [(2, 2, 3)], {"axis": 1, "values_count": 2}),
        operation("unpack", "UNPACK", [(3, 4)], [(3,)] * 4, {"axis": 1, "num": 4}),
        operation("split", "SPLIT", [scalar(3), (1, 4, 4, 6)], [(1, 4, 4, 2)] * 3,
            {"num_splits": 3}),
        operation("split_v", "SPLIT_V", [(5, 4), whole(1, 4), scalar(0)], [(1, 4), (4, 4)],
            {"num_splits": 2}),
        operation("pad", "PAD", [IMAGE, pads], [(1, 10, 9, 6)]),
        operation("padv2", "PADV2", [IMAGE, pads, five], [(1, 10, 9, 6)]),
        operation("mirror_pad_reflect", "MIRROR_PAD", [IMAGE, pads], [(1, 10, 9, 6)],
            {"mode": "REFLECT"}),
        operation("mirror_pad_symmetric", "MIRROR_PAD", [IMAGE, pads], [(1, 10, 9, 6)],
            {"mode": "SYMMETRIC"}),
        operation("slice", "SLICE", [IMAGE, whole(0, 2, 1, 0), whole(1, 3, -1, 5)], [(1, 3, 5, 5)]),
        operation("strided_slice", "STRIDED_SLICE",
            [IMAGE, whole(0, 1, -5, 0), whole(1, 7, 6, 5), whole(1, 2, 2, 1)],
                  [(1, 3, 3, 5)]),
        operation("strided_slice_masks", "STRIDED_SLICE",
            [(4, 6), whole(3, 2), whole(1, 4), whole(1, 1)], [(4, 2)],
                  {"begin_mask": 1, "end_mask": 1}),
        operation("strided_slice_shrinks", "STRIDED_SLICE",
            [(4, 6), whole(-1, 0), whole(0, 6), whole(1, 1)], [(6,)],
                  {"shrink_axis_mask": 1}),
        operation("gather", "GATHER", [IMAGE, np.array([[3, 0], [5, 5]], np.int32)],
            [(1, 7, 2, 2, 5)], {"axis": 2}),
        operation("dequantize_float16", "DEQUANTIZE", [numbers(5, 5).astype(np.float16)], [(5, 5)]),
    ]  # fmt: skip


COMMON: Final = [
    *unary(),
    *binary(),
    *convolutions(),
    *computed_filters(),
    *transposed(),
    *transposed_with_bias(),
    *pools("AVERAGE_POOL_2D", "MAX_POOL_2D"),
    *resizes(*SIZES),
    *blocks(),
    *matrices(),
    *reductions(*REDUCTIONS),
    *normalizations(),
    *structure(),
]


def check_agrees(device: Device, case: OneOperation) -> AccuracyClass:
    """*device* takes *case*, and gives what the reference does. The class that it meets."""
    (answer,) = device.supported_operations(case.model)
    assert answer.supported, answer.reason
    given = [case.inputs(seed) for seed in range(3)]
    ours = run_on([device], case.model, given, answer.accuracy)
    reference = run_on(["reference"], case.model, given)
    for got, wanted in zip(chain(*ours), chain(*reference), strict=True):
        assert got.shape == wanted.shape
        if answer.accuracy == "exact":
            assert np.array_equal(got, wanted)
        else:
            assert np.abs(got - wanted).max() <= FLOAT_SHARE * np.abs(wanted).max()
    return answer.accuracy
