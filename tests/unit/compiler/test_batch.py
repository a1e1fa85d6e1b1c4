"""Programs whose images are independent are separated, and others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.batch import divided, separated
from penstock.compiler.legalise import legalise
from penstock.compiler.program import Program
from penstock.ir import DType, ModelBuilder, NDArray

F32: Final = DType.FLOAT32
IMAGES: Final = 3
SIZE: Final = (IMAGES, 5, 7, 4)
WINDOW: Final[dict[str, object]] = {
    "padding": "SAME", "stride_w": 2, "stride_h": 1, "fused_activation_function": "RELU6",
}  # fmt: skip

Add: TypeAlias = "Callable[..., int]"


class Writer:
    """Writes one model of an input `x` of `SIZE`."""

    def __init__(self) -> None:
        self.builder, self.rng = ModelBuilder(), np.random.default_rng(4)
        self.x = self.builder.input(F32, SIZE, "x")

    def filters(self, *shape: int) -> int:
        return self.builder.constant(self.rng.standard_normal(shape).astype(np.float32))

    def numbers(self, *values: int) -> int:
        return self.builder.constant(np.array(values, np.int32))

    def add(self, kind: str, inputs: list[int], shape: tuple[int, ...], **given: object) -> int:
        (made,) = self.builder.operation(kind, inputs, [(F32, shape)], given)  # type: ignore[arg-type]  # any attributes
        return made


def convolution(w: Writer) -> int:
    wide = w.add("CONV_2D", [w.x, w.filters(6, 3, 3, 4), w.filters(6)], (3, 5, 4, 6), **WINDOW)
    given = [wide, w.filters(1, 3, 3, 6), w.filters(6)]
    return w.add("DEPTHWISE_CONV_2D", given, (3, 5, 2, 6), depth_multiplier=1, **WINDOW)


def classifier(w: Writer) -> int:
    flat = w.add("RESHAPE", [w.x, w.numbers(3, 140)], (3, 140))
    scores = w.add("FULLY_CONNECTED", [flat, w.filters(9, 140), w.filters(9)], (3, 9))
    return w.add("SOFTMAX", [scores], (3, 9), beta=1.0)


def rows(w: Writer) -> int:
    """Each row of each image is a sample, and then a part of its image again."""
    flat = w.add("RESHAPE", [w.x, w.numbers(15, 28)], (15, 28))
    made = w.add("FULLY_CONNECTED", [flat, w.filters(2, 28), w.filters(2)], (15, 2))
    return w.add("RESHAPE", [made, w.numbers(3, 10)], (3, 10))


def residual(w: Writer) -> int:
    pool: dict[str, object] = {**WINDOW, "filter_width": 3, "filter_height": 2}
    pooled = w.add("AVERAGE_POOL_2D", [w.x], (3, 5, 4, 4), **pool)
    total = w.add("ADD", [pooled, pooled], (3, 5, 4, 4))
    joined = w.add("CONCATENATION", [total, pooled], (3, 5, 4, 8), axis=3)
    return w.add("MEAN", [joined, w.numbers(1, 2)], (3, 8), keep_dims=False)


def weights_made_of_constants(w: Writer) -> int:
    filters = w.add("ABS", [w.filters(6, 3, 3, 4)], (6, 3, 3, 4))
    return w.add("CONV_2D", [w.x, filters, w.filters(6)], (3, 5, 4, 6), **WINDOW)


def mean_of_images(w: Writer) -> int:
    mean = w.add("MEAN", [w.x, w.numbers(0)], (1, 5, 7, 4), keep_dims=True)
    return w.add("SUB", [w.x, mean], SIZE)


def images_in_reverse(w: Writer) -> int:
    return w.add("REVERSE_V2", [w.x, w.numbers(0)], SIZE)


def images_moved_inside(w: Writer) -> int:
    turned = w.add("TRANSPOSE", [w.x, w.numbers(1, 0, 2, 3)], (5, 3, 7, 4))
    made = w.add("SOFTMAX", [turned], (5, 3, 7, 4), beta=1.0)
    return w.add("TRANSPOSE", [made, w.numbers(1, 0, 2, 3)], SIZE)


def another_constant_for_each_image(w: Writer) -> int:
    return w.add("ADD", [w.x, w.filters(*SIZE)], SIZE)


def images_joined(w: Writer) -> int:
    return w.add("CONCATENATION", [w.x, w.x], (6, 5, 7, 4), axis=0)


def parts_across_images(w: Writer) -> int:
    flat = w.add("RESHAPE", [w.x, w.numbers(2, 210)], (2, 210))
    made = w.add("SOFTMAX", [flat], (2, 210), beta=1.0)
    return w.add("RESHAPE", [made, w.numbers(*SIZE)], SIZE)


INDEPENDENT = [convolution, classifier, rows, residual, weights_made_of_constants]
TOGETHER = [
    mean_of_images, images_in_reverse, images_moved_inside, another_constant_for_each_image,
    images_joined, parts_across_images,
]  # fmt: skip


@pytest.mark.parametrize("write", INDEPENDENT, ids=lambda f: f.__name__)
def test_independent_images_are_separated(write: Callable[[Writer], int]) -> None:
    writer = Writer()
    program = legalise(writer.builder.build([write(writer)]))
    batch = separated(program)
    assert batch is not None
    assert batch.parts == IMAGES
    x = np.random.default_rng(9).standard_normal(SIZE).astype(np.float32)
    (whole,) = interpreter.run(program, [x])
    parts = [interpreter.run(batch.program, [x[i : i + 1]])[0] for i in range(IMAGES)]
    # Sums of one image may be taken in another order than those of the batch.
    assert np.allclose(np.concatenate(parts), whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("write", TOGETHER, ids=lambda f: f.__name__)
def test_images_that_depend_on_each_other_are_not(write: Callable[[Writer], int]) -> None:
    writer = Writer()
    program = legalise(writer.builder.build([write(writer)]))
    assert separated(program) is None


def layers(images: int) -> tuple[Program, NDArray]:
    """Two fully connected layers of one row an image, and an input."""
    builder, random = ModelBuilder(), np.random.default_rng(9)
    value = builder.input(F32, (images, 12), "x")
    for inputs, units in ((12, 20), (20, 3)):
        weights = random.standard_normal((units, inputs)).astype(np.float32)
        given = [value, builder.constant(weights), builder.constant(weights[:, 0].copy())]
        (value,) = builder.operation("FULLY_CONNECTED", given, [(F32, (images, units))])
    return legalise(builder.build([value])), random.random((images, 12), np.float32)


@pytest.mark.parametrize(
    ("images", "together"), [(32, 16), (24, 12), (40, 10), (35, 7), (64, 16), (100, 10)]
)
def test_images_of_one_row_are_computed_several_together(images: int, together: int) -> None:
    program, x = layers(images)
    batch = divided(program)
    assert batch is not None
    assert batch.parts * together == images
    (whole,) = interpreter.run(program, [x])
    parts = [
        interpreter.run(batch.program, [x[i : i + together]])[0] for i in range(0, images, together)
    ]
    assert np.allclose(np.concatenate(parts), whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("images", [2, 7, 16, 19, 37])
def test_images_of_one_row_that_make_no_equal_parts_are_one_part(images: int) -> None:
    assert divided(layers(images)[0]) is None


@pytest.mark.parametrize("write", [convolution, residual], ids=lambda f: f.__name__)
def test_images_of_many_rows_are_parts_of_their_own(write: Callable[[Writer], int]) -> None:
    writer = Writer()
    batch = divided(legalise(writer.builder.build([write(writer)])))
    assert batch is not None
    assert batch.parts == IMAGES


def test_one_image_is_no_batch() -> None:
    builder = ModelBuilder()
    x = builder.input(F32, (1, 4), "x")
    (made,) = builder.operation("ABS", [x], [(F32, (1, 4))])
    assert separated(legalise(builder.build([made]))) is None


def test_an_output_that_depends_on_no_input_is_common_to_all_images() -> None:
    writer = Writer()
    made = writer.add("ABS", [writer.x], SIZE)
    constant = writer.add("ABS", [writer.filters(3, 4)], (3, 4))
    assert separated(legalise(writer.builder.build([made, constant]))) is None


def test_the_program_of_one_image_does_not_depend_on_their_number() -> None:
    programs = []
    for images in (2, 5):
        builder = ModelBuilder()
        x = builder.input(F32, (images, 6), "x")
        (made,) = builder.operation("ABS", [x], [(F32, (images, 6))])
        batch = separated(legalise(builder.build([made])))
        assert batch is not None
        assert batch.parts == images
        programs.append(batch.program)
    first, second = programs
    assert (first.kernels, first.tensors) == (second.kernels, second.tensors)
