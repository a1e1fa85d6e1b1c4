"""Shaders that differ in numbers alone become one."""

from __future__ import annotations

import re

import numpy as np
import pytest

from penstock.compiler import interpreter
from penstock.compiler.outputs import with_own_outputs
from penstock.drivers.webgpu.compiling import lowered
from penstock.drivers.webgpu.emit.module import generate
from penstock.drivers.webgpu.emit.sharing import Fixed, array_of, shared
from penstock.hal import PrepareConfig
from penstock.ir import DType, ModelBuilder, Quantization
from tests.support_webgpu import needs_webgpu, run_program

HEAD = """@group(0) @binding(0) var<storage, read_write> b0: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) g: vec3<u32>) {
"""


def shader(line: str) -> str:
    return f"{HEAD}{line}\n}}\n"


def sharing(first: str, second: str, fixed: Fixed = "none") -> tuple[tuple[str, ...], list[object]]:
    """The shaders of two lines, and the numbers that each reads."""
    made = shared([(shader(first), fixed), (shader(second), fixed)])
    return made.shaders, [numbers for _, numbers in made.users]


@pytest.mark.parametrize(
    ("first", "second", "line", "numbers"),
    [
        ("let q = t * 8;", "let q = t * 24;", "let q = t * N;", [8, 24]),
        ("let q = t + 3;", "let q = t - 3;", "let q = t + N;", [3, 2**32 - 3]),
        ("let v = max(u, i32(-128));", "let v = max(u, i32(5));", "let v = max(u, N);",
         [2**32 - 128, 5]),
        ("let v = u * f32(0.5);", "let v = u * f32(-2.0);", "let v = u * N;",
         [0x3F000000, 0xC0000000]),
        ("if (q < 7u) { return; }", "if (q < 0x9u) { return; }", "if (q < N) { return; }", [7, 9]),
    ],
)  # fmt: skip
def test_two_shaders_that_differ_in_a_number_become_one_that_reads_it(
    first: str, second: str, line: str, numbers: list[int]
) -> None:
    (text,), users = sharing(first, second)
    assert users == [(number,) for number in numbers]
    assert re.sub(r"number0_\w+", "N", text.splitlines()[-2]) == line
    assert "@binding(1) var<uniform> numbers: array<vec4<u32>, 1>;" in text


def test_numbers_that_differ_alike_are_read_from_one_place() -> None:
    (_text,), users = sharing("let q = t * 8 + 8;", "let q = t * 9 + 9;")
    assert users == [(8,), (9,)]


def test_equal_texts_read_no_numbers() -> None:
    (text,), users = sharing("let q = t * 8;", "let q = t * 8;")
    assert (text, users) == (shader("let q = t * 8;"), [(), ()])


@pytest.mark.parametrize(
    ("first", "second", "fixed"),
    [
        ("var s = array<vec4<i32>, 8>();", "var s = array<vec4<i32>, 4>();", "none"),
        ("let q = t * 8;", "let q = t * 8u;", "none"),
        ("let q = t / 8;", "let q = t / 9;", "costly"),
        ("for (var i3 = 0; i3 < 3; i3++) {}", "for (var i3 = 0; i3 < 5; i3++) {}", "costly"),
        ("let q = t * 8;", "let q = t * 9;", "all"),
    ],
)
def test_shaders_whose_numbers_are_fixed_stay_apart(first: str, second: str, fixed: Fixed) -> None:
    assert len(sharing(first, second, fixed)[0]) == 2


def test_a_function_before_the_entry_point_reads_numbers_itself() -> None:
    texts = [
        f"fn f(x: i32) -> i32 {{ return x * {n}; }}\n{shader('let q = f(t);')}" for n in (3, 4)
    ]
    (text,) = shared([(text, "none") for text in texts]).shaders
    assert "return x * bitcast<i32>(numbers[0].x);" in text


def test_the_contents_of_a_uniform_are_whole_vectors() -> None:
    assert array_of([1, 2, 3, 4, 5]).tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


@needs_webgpu
def test_layers_of_different_sizes_share_a_shader_and_compute_what_they_did_alone() -> None:
    builder, rng = ModelBuilder(), np.random.default_rng(3)
    x = builder.input(DType.INT8, (1, 6, 6, 8), "x", quantization=Quantization((0.1,), (-3,)))
    value, depth = x, 8
    for channels in (16, 24, 40):
        weights = rng.integers(-128, 128, (channels, 1, 1, depth)).astype(np.int8)
        filters = builder.constant(weights, "w", Quantization((0.02,), (0,)))
        (value,) = builder.operation(
            "CONV_2D",
            [value, filters, None],
            [(DType.INT8, (1, 6, 6, channels), Quantization((0.4,), (channels - 20,)))],
            {"padding": "SAME", "stride_w": 1, "stride_h": 1},
        )
        depth = channels
    program = with_own_outputs(lowered(builder.build([value]), PrepareConfig()))
    made = generate(program)
    assert (len(made.calls), len(made.shaders)) == (3, 1)
    given = rng.integers(-128, 128, (1, 6, 6, 8)).astype(np.int8)
    np.testing.assert_array_equal(
        run_program(program, [given])[0], interpreter.run(program, [given])[0]
    )
