"""Detections by what they are made of: for one step of a score boxes change places, and one hides
another, so that a list of them tells little of how far a network is off. LiteRT's own kernel sets
give lists that do not match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest
from msgspec.structs import replace

from penstock.export.tflite import write
from penstock.ir import Lifetime, Model, NDArray
from penstock.partitioning.split import Cutter
from penstock.runtime.operations import run_alone
from tests.golden.comparison import Case, Rule, compare_detections

DETECTION: Final = "CUSTOM:TFLite_Detection_PostProcess"
SPREAD: Final = 1.5


@dataclass(frozen=True)
class Detecting:
    """A network that ends in detections. *model* has boxes and scores, all of them, as further
    outputs behind the *count* of the file's own; *last* makes the detections of them.
    """

    model: Model
    last: Model
    count: int

    def check(
        self, outputs: Sequence[NDArray], rule: Rule, given: Sequence[NDArray],
        inputs: Sequence[Sequence[NDArray]],
    ) -> None:  # fmt: skip
        """Raises `AssertionError` where boxes or scores are farther from LiteRT's reference kernels
        than 1.5 times what LiteRT by default is on any of *inputs*, plus one step; and where the
        detections are not those that the reference makes of these very boxes and scores. *outputs*
        are those of `model` for *given*.
        """
        raw = outputs[self.count :]
        exact = self._litert(given, "BUILTIN_REF")
        spreads = [
            _distances(self._litert(each, "BUILTIN"), self._litert(each, "BUILTIN_REF"))
            for each in inputs
        ]
        for k, off in enumerate(_distances(raw, exact)):
            allowed = SPREAD * max(spread[k] for spread in spreads) + 1
            assert off <= allowed, (
                f"what detections are made of, {k}: {off:.4g} from the reference kernels, "
                f"{allowed:.4g} allowed"
            )
        made = run_alone(self.last, raw, "reference", accuracy="exact")
        compare_detections(outputs[: self.count], Case(made, lambda: None), rule)

    def _litert(self, given: Sequence[NDArray], kernels: str) -> list[NDArray]:
        litert = pytest.importorskip(
            "ai_edge_litert.interpreter", reason="LiteRT is needed as judge"
        )
        interpreter: Any = litert.Interpreter(
            model_content=write(self.model),
            num_threads=1,
            experimental_op_resolver_type=litert.OpResolverType[kernels],
        )
        interpreter.allocate_tensors()
        for detail, array in zip(interpreter.get_input_details(), given, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        details = interpreter.get_output_details()[self.count :]
        return [interpreter.get_tensor(detail["index"]).copy() for detail in details]


def detecting(model: Model) -> Detecting | None:
    """*model* as one, where it computes the integers that its detections are made of."""
    entry = model.entry
    found = [k for k, o in enumerate(entry.operations) if o.key == DETECTION]
    if len(found) != 1:
        return None
    raw = entry.operations[found[0]].inputs[:2]
    if any(entry.operands[i].lifetime is not Lifetime.TEMPORARY_VARIABLE for i in raw):
        return None
    if any(entry.operands[i].dtype.is_float for i in raw):
        return None
    last = Cutter(model).cut(found)
    if last.inputs != raw:
        return None
    operands = list(entry.operands)
    for i in raw:
        operands[i] = replace(operands[i], lifetime=Lifetime.SUBGRAPH_OUTPUT)
    exposed = replace(entry, operands=tuple(operands), outputs=(*entry.outputs, *raw))
    return Detecting(Model((exposed,), model.pools), last.model, len(entry.outputs))


def _distances(a: Sequence[NDArray], b: Sequence[NDArray]) -> list[int]:
    return [
        int(np.abs(x.astype(np.int64) - y.astype(np.int64)).max(initial=0))
        for x, y in zip(a, b, strict=True)
    ]
