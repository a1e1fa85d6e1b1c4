from __future__ import annotations

import pytest

from penstock.arguments import there_are
from penstock.compilation import Receipt, StepReceipt
from penstock.errors import counted


@pytest.mark.parametrize(
    ("number", "words", "others"),
    [(0, "0 steps", "0 entries"), (1, "1 step", "1 entry"), (2, "2 steps", "2 entries")],
)
def test_counted_uses_the_singular_for_one(number: int, words: str, others: str) -> None:
    assert counted(number, "step") == words
    assert counted(number, "entry", "entries") == others


def test_sentence_lists_the_known_names() -> None:
    assert there_are([]) == "there are none"
    assert there_are(["a"]) == "there is only 'a'"
    assert there_are(["a", "b"]) == "there are 'a', 'b'"


def test_receipt_uses_the_singular_for_one_operation() -> None:
    shown = Receipt((StepReceipt("reference", (0,), 1),), compiles=1).show()
    assert shown.startswith("0.000 ms, 1 compile, 0 bytes copied\n")
    assert "step 0 on reference: 1 operation, " in shown
