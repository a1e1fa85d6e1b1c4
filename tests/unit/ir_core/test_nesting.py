"""Subgraphs within subgraphs as deep as models may have them, and subgraphs that several operations
share.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import LimitExceeded
from penstock.ir import Model, infer_shapes
from penstock.ir.digest import form_of
from penstock.ir.transforms import entered_from, specialized
from penstock.ir.validate import MAX_DEPTH
from tests.checked import does_not_raise
from tests.support_nesting import KINDS, SHAPE, Kind, nested

FRAMES = 60
"""Python frames that suffice for what does not go down with the subgraphs."""


@pytest.fixture
def shallow_stack() -> Any:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + FRAMES)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
def test_a_model_may_be_nested_128_deep(kind: Kind, shared: bool) -> None:
    assert MAX_DEPTH == 128
    nested(kind, 128, shared=shared)
    with pytest.raises(LimitExceeded, match="129 deep; the limit is 128"):
        nested(kind, 129, shared=shared)


ACTS: list[Callable[[Model], object]] = [infer_shapes, specialized, lambda m: m.digest]


@pytest.mark.usefixtures("shallow_stack")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("act", ACTS, ids=["infer", "settle", "digest"])
def test_nesting_costs_no_stack(act: Callable[[Model], object], kind: Kind) -> None:
    with does_not_raise():
        act(nested(kind, MAX_DEPTH))


@pytest.mark.parametrize("kind", KINDS)
def test_shared_subgraphs_are_inferred_once(kind: Kind) -> None:
    model = infer_shapes(nested(kind, MAX_DEPTH, shared=True))
    assert [o.shape for o in model.outputs] == [SHAPE]


def test_shared_subgraphs_are_copied_once_for_the_same_shapes() -> None:
    model = specialized(nested("IF", MAX_DEPTH, shared=True))
    assert len(entered_from(model, model.main)) == MAX_DEPTH


def test_copies_of_subgraphs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nested("IF", 10)
    monkeypatch.setattr("penstock.ir.transforms.MOST_COPIED", 0)
    # The entry counts among what the model has, and is not copied.
    assert len(specialized(model).subgraphs) == 2 * len(model.subgraphs) - 1
    monkeypatch.setattr("penstock.ir.transforms.MOST_COPIED", -10_000)
    assert specialized(model) == model


def test_the_form_of_an_operation_hashes_a_shared_subgraph_once() -> None:
    forms = {
        form_of(m, m.operations[0]).digest
        for m in (nested("IF", d, shared=s) for d in (MAX_DEPTH, 3) for s in (False, True))
    }
    assert len(forms) == 4
