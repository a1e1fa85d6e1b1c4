"""`repr` of large values fits a line; notebooks show them as bounded, escaped tables."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

import penstock
from penstock.compilation.step_receipt import Failure, StepReceipt
from penstock.drivers.null import NullDevice
from penstock.execution.interface import Outputs
from penstock.ir import DType, Model, ModelBuilder
from penstock.partitioning import place

HOSTILE = "<script>alert('x')</script>\n\x1b[2J&\"" + "n" * 5000
TAGS = {"table", "caption", "tr", "th", "td"}


class Tags(HTMLParser):
    """The tags and the text of a document."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def chain(operations: int, name: str) -> Model:
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (1, 4), name)
    for _ in range(operations):
        (x,) = builder.operation("RELU", [x], [(DType.FLOAT32, (1, 4))])
    return builder.build([x])


class Hostile(NullDevice):
    """A device whose name is markup."""

    name = HOSTILE


def hostile_values() -> dict[str, object]:
    with penstock.compile(chain(200, HOSTILE), devices=[NullDevice()], cache=False) as compiled:
        plan = place(compiled.model, [Hostile()])
        outputs = compiled.run([np.zeros((1, 4), np.float32)])
        receipt = outputs.receipt
        failed = Failure(HOSTILE, HOSTILE)
        steps = tuple(
            StepReceipt(HOSTILE, (0,), 1, step=k, failures=(failed,), fallback_from=HOSTILE)
            for k in range(200)
        )
        return {
            "plan": plan,
            "step": plan.steps[0],
            "compiled": compiled,
            "outputs": outputs,
            "many outputs": Outputs([np.zeros(3)] * 200, [HOSTILE] * 200, receipt),
            "strings": Outputs([np.array([HOSTILE.encode()] * 9, object)], [HOSTILE], receipt),
            "receipt": receipt,
            "failed receipt": penstock.Receipt(steps, notes=(HOSTILE,) * 200),
            "compile receipt": compiled.receipt,
        }


VALUES = hostile_values()


@pytest.mark.parametrize("name", VALUES)
def test_repr_is_one_printable_line_of_at_most_120_characters(name: str) -> None:
    text = repr(VALUES[name])
    assert len(text) <= 120
    assert text.isprintable()


@pytest.mark.parametrize("name", [name for name in VALUES if name != "step"])
def test_html_is_an_escaped_table_of_bounded_size(name: str) -> None:
    document = VALUES[name]._repr_html_()  # type: ignore[attr-defined]  # all but a step have it
    parsed = Tags(document)
    assert parsed.tags <= TAGS
    assert parsed.tags >= {"table", "caption", "th"}
    assert len(document) < 200_000
    assert "\x1b" not in document


def test_html_of_outputs_has_type_shape_and_first_values_of_each() -> None:
    outputs = Outputs([np.arange(6, dtype=np.int8).reshape(2, 3)], ["y"], penstock.Receipt())
    assert Tags(outputs._repr_html_()).texts[-4:] == ["y", "int8", "[2, 3]", "0, 1, 2, 3"]


def test_html_of_a_plan_names_each_step_with_its_device() -> None:
    with penstock.compile(chain(2, "x"), devices=["reference"], cache=False) as compiled:
        texts = Tags(compiled.plan._repr_html_()).texts
        assert repr(compiled.plan).startswith("<ExecutionPlan: 1 step, 2 operations")
    assert "reference" in texts
    assert "0-1: RELU x2" in texts


def test_html_of_a_receipt_names_each_step_with_its_device() -> None:
    receipt = penstock.Receipt((StepReceipt("gpu", (0, 1), 1_500_000, step=0),), notes=("slow",))
    texts = Tags(receipt._repr_html_()).texts
    assert texts[7:11] == ["0", "gpu", "2", "1.500"]
    assert texts[-2:] == ["note", "slow"]
