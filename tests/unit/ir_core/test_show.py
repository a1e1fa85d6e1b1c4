from __future__ import annotations

import re

import numpy as np
import pytest
from msgspec.structs import replace

from penstock import ir
from penstock.ir.model import MAX_ROWS, show_operand, show_shape
from tests.unit.ir_core.samples import F32, branching, counter, small


@pytest.mark.parametrize(
    ("shape", "text"), [((1, None, 3), "[1, ?, 3]"), ((), "[]"), (None, "[...]"), ((0,), "[0]")]
)
def test_shapes_are_shown_with_unknown_dimensions(shape: ir.Shape, text: str) -> None:
    assert show_shape(shape) == text


@pytest.mark.parametrize(
    ("quantization", "text"),
    [
        (None, "int8[2, ?]"),
        (ir.Quantization((0.0039215689,), (-128,)), "int8[2, ?] (0.00392157, -128)"),
        (ir.Quantization((1.0, 2.0), (0, 0), 0), "int8[2, ?] per channel 0"),
    ],
)
def test_operands_are_shown_with_their_quantisation(
    quantization: ir.Quantization | None, text: str
) -> None:
    assert show_operand(ir.Operand(ir.DType.INT8, (2, None), quantization=quantization)) == text


def test_a_model_line_by_line() -> None:
    model = replace(small(), signatures={"serve": ir.Signature(0, (("a", 0),), (("b", 3),))})
    attributes = "{fused_activation_function=NONE, pot_scale_int16=True}"
    assert model.show().splitlines() == [
        f"model {model.digest.structure.hex()[:16]}",
        "  signature 'serve': subgraph 0",
        "subgraph 0 'main' (main)",
        "  input  %0 'x': float32[2, 40]",
        "  %2: float32[2, 40] = ADD(%0, float32[2, 40]) " + attributes,
        "  %3: float32[2, 40] = RELU(%2)",
        "  output %3 '': float32[2, 40]",
    ]


def test_states_are_shown() -> None:
    lines = counter().show().splitlines()
    assert "  variable 0 'count': float32[2]" in lines
    assert "  state  variable 0: %1 -> %2" in lines
    assert not any(line.startswith("  input  %1") for line in lines)


def test_every_subgraph_is_shown() -> None:
    lines = branching().show().splitlines()
    assert [line for line in lines if line.startswith("subgraph")] == [
        "subgraph 0 'main' (main)",
        "subgraph 1 'add'",
        "subgraph 2 'relu'",
    ]


def test_omitted_inputs_and_bytes_have_a_short_form() -> None:
    b = ir.ModelBuilder()
    x, w = b.input(F32, (1, 2), "x"), b.constant(np.ones((2, 2), np.float32))
    (y,) = b.operation("FULLY_CONNECTED", [x, w, None], [(F32, (1, 2))], {"quant_spec": b"abc"})
    text = b.build([y]).show()
    assert "FULLY_CONNECTED(%0, float32[2, 2], -)" in text
    assert "quant_spec=<3 bytes>" in text


def test_metadata_is_not_shown_and_the_text_is_stable() -> None:
    model = small()
    assert replace(model, metadata=ir.Metadata(description="secret")).show() == model.show()
    assert model.show().endswith("\n")


def named(name: str, inputs: int = 1, *, kinds: int = 1) -> ir.Model:
    """A model with hostile or many names: *inputs* inputs, custom operators of *kinds* kinds."""
    builder = ir.ModelBuilder(name)
    added = [builder.input(F32, (2, 40), f"{name}{i}") for i in range(inputs)]
    outputs = [
        builder.operation("CUSTOM", added[:1], [(F32, (2,))], {"custom_code": f"{i}{name}"})
        for i in range(kinds)
    ]
    return builder.build([index for (index,) in outputs])


HOSTILE = ["<script>alert(1)</script>", "\"'&<>", "a" * 10_000, "\x1b[2J\n\u202e", "\ud800"]


def test_repr_of_a_model_names_operations_and_ends() -> None:
    assert repr(small()) == "<Model 'main': 2 operations, float32[2, 40] -> float32[2, 40]>"


@pytest.mark.parametrize("name", HOSTILE)
def test_repr_of_a_model_is_one_short_line(name: str) -> None:
    line = repr(named(name, 300))
    assert len(line) <= 120
    assert line.isprintable()
    assert line.startswith("<Model ")
    assert line.endswith(">")


def test_html_of_a_model_counts_operations_by_type() -> None:
    html = small()._repr_html_()
    assert html.startswith("<table><caption>Model &#x27;main&#x27;: 2 operations</caption>")
    assert "<tr><th>input 0</th><td>x float32[2, 40]</td></tr>" in html
    assert "<tr><th>ADD</th><td>1 x</td></tr>" in html


@pytest.mark.parametrize("name", HOSTILE)
def test_html_of_a_model_is_escaped_and_bounded(name: str) -> None:
    html = named(name, 300, kinds=300)._repr_html_()
    texts = re.sub(r"</?(?:table|caption|tr|th|td)>", "", html)
    assert not set(texts) & set("<>\"'\x1b\n\u202e\ud800")
    assert not re.search(r"&(?!(?:lt|gt|amp|quot|#x27);)", texts)
    assert html.count("<tr>") == MAX_ROWS + 1
    assert len(html) < 50_000
