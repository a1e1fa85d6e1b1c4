"""Delegates are invisible: random graphs, random nodes for one to three delegates, results bit for
bit the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from penstock import tflite
from penstock.delegates import DelegateContext, DelegateNode, DriverDelegate, Registration
from penstock.errors import NotExportable
from penstock.export.tflite import write
from tests.support_graphs import RandomGraph


class Choosing(DriverDelegate):
    """Takes each node that it could with the probability *share*."""

    def __init__(self, rng: np.random.Generator, share: float) -> None:
        super().__init__("reference", cache=False)
        self.rng, self.share = rng, share

    def is_node_supported(
        self, registration: Registration, node: DelegateNode, context: DelegateContext
    ) -> bool:
        taken = self.rng.random() < self.share
        return taken and super().is_node_supported(registration, node, context)


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = RandomGraph(rng)
    model = graph.make()
    try:
        content = write(model)
    except NotExportable:
        return
    delegates = [Choosing(rng, float(rng.random())) for _ in range(int(rng.integers(1, 4)))]
    options: dict[str, Any] = {
        "experimental_disable_delegate_clustering": bool(rng.random() < 0.2),
        "experimental_disable_delegate_node_fusion": bool(rng.random() < 0.2),
    }
    plain, delegated = (
        tflite.Interpreter(
            model_content=content,
            experimental_delegates=chosen,
            devices=["reference"],
            cache=False,
            **options,
        )
        for chosen in ([], delegates)
    )
    found = []
    for interpreter in (plain, delegated):
        interpreter.allocate_tensors()
        for _ in range(2):
            for detail, value in zip(interpreter.get_input_details(), graph.arrays, strict=False):
                interpreter.set_tensor(detail["index"], value)
            interpreter.invoke()
        outputs = interpreter.get_output_details()
        found.append([np.asarray(interpreter.get_tensor(d["index"])) for d in outputs])
        interpreter.close()
    for got, wanted in zip(*found, strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_delegates_are_invisible(seed: int) -> None:
    check(seed)
