"""The guide's own example, `examples/my_delegate.py`, in both forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples.my_delegate import MyDelegate, MyRawDelegate
from penstock.delegates import Delegate
from tests.unit.delegates import graphs
from tests.unit.delegates.test_delegates import opened, run

X = np.random.default_rng(0).normal(size=(1, 5, 4, 2)).astype(np.float32)

GRAPHS = {
    "both in a row: one kernel": (graphs.convolved(after="NEG"), ["DELEGATE", "NEG"]),
    "apart: two kernels": (graphs.convolved("ABS"), ["DELEGATE", "ABS", "DELEGATE"]),
    "nothing else: one node": (graphs.convolved(), ["DELEGATE"]),
}


@pytest.mark.parametrize("kind", [MyDelegate, MyRawDelegate])
@pytest.mark.parametrize("name", GRAPHS)
def test_both_forms(kind: type[Delegate], name: str) -> None:
    content, names = GRAPHS[name]
    interpreter = opened(content, kind())
    (got,), (wanted,) = run(interpreter, X), run(opened(content), X)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    plan = interpreter._core.graph(0).plan
    assert [d["op_name"] for d in map(interpreter._get_op_details, plan)] == names


def test_it_is_under_sixty_lines() -> None:
    source = Path(__file__).parents[3] / "examples" / "my_delegate.py"
    assert len(source.read_text("utf-8").splitlines()) < 60
