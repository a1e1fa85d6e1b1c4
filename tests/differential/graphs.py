"""Small random models of two to six operations, drawn by the generators of single ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from penstock.errors import PenstockError
from penstock.ir import DType, infer_shapes
from penstock.ir.types import static_shape
from tests.differential.draw import Draw, Drawn, Value
from tests.differential.kinds import GIVEN
from tests.differential.registry import Case, accepted, every_case

ATTEMPTS: Final = 12
NO_REFERENCE: Final = frozenset(
    {"ELU", "CEIL", "ROUND", "SEGMENT_SUM", "HASHTABLE_FIND"}
    | {"STABLEHLO_AND", "STABLEHLO_SHIFT_LEFT", "STABLEHLO_CASE"}
    | {"CUSTOM:aeq.hadamard_rotation", "CUSTOM:odml.scaled_dot_product_attention"}
    | {"CUSTOM:MaxPoolingWithArgmax2D", "CUSTOM:MaxUnpooling2D"}
    | {"CUSTOM:Convolution2DTransposeBias"}
)
"""What LiteRT's reference kernels lack: a graph with one of them could be judged by other kernels
alone.
"""

UNSETTLED: Final = frozenset({"BITCAST", "POW", "CUSTOM:TFLite_Detection_PostProcess"})
"""Not in graphs either: BITCAST makes much of the last bit of a float, POW of a negative one
everything of that of its exponent, and LiteRT's detections leave behind the last one what lay in
memory.
"""

COMMON: Final = (DType.FLOAT32, DType.FLOAT32, DType.INT8, DType.INT16, DType.INT32, DType.UINT8)


def draw_graph(seed: Sequence[int]) -> Drawn:
    """A model of several operations, most of which read what earlier ones made."""
    graph = Graph(np.random.default_rng(seed))
    wanted = int(graph.rng.integers(2, 7))
    for _ in range(ATTEMPTS):
        graph.grow()
        if len(graph.draw.builder._operations) == wanted:
            break
    return graph.finish()


class Graph:
    """A model that grows by operations. *draw* is the common one: it owns the builder and the
    inputs.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.draw = Draw(rng, kind=None if rng.random() < 0.6 else GIVEN[rng.integers(len(GIVEN))])
        self.made: list[Value] = []

    def grow(self) -> None:
        """Adds an operation at random, unless the table refuses it."""
        draw = self.draw
        dtype = draw.pick(self.made).dtype if self.made else draw.pick(COMMON)
        case, types = self._case(dtype)
        builder = draw.builder
        before = len(builder._operations), len(builder._inputs), len(draw.feeds)
        states = len(builder._states)
        step = Draw(self.rng, types, None, False, self.made, builder, draw.feeds)
        try:
            case.generate(step, case.key)
            self.made += self._shaped(step.results)
        except (PenstockError, ValueError, TypeError, IndexError, OverflowError):
            del builder._operations[before[0] :]
            del builder._inputs[before[1] :]
            del draw.feeds[before[2] :]
            del builder._states[states:]

    def finish(self) -> Drawn:
        """The model: its outputs are all that nobody reads, and some of the others."""
        read = {i for o in self.draw.builder._operations for i in o.inputs}
        kept = {new for _, _, new in self.draw.builder._states}
        made = [i for o in self.draw.builder._operations for i in o.outputs if i not in kept]
        outputs = [i for i in made if i not in read or self.draw.chance(0.2)]
        return self.draw.finish(outputs)

    def _case(self, dtype: DType) -> tuple[Case, tuple[DType, ...]]:
        """A generator with types, the first one *dtype* if there is such an assignment."""
        cases = [c for key, c in every_case().items() if key not in NO_REFERENCE | UNSETTLED]
        while True:
            case = self.draw.pick(cases)
            known = accepted(case.family).get(case.key) or [()]
            fitting = [t for t in known if t and t[0] is dtype]
            if fitting or self.draw.chance(0.02):
                return case, self.draw.pick(fitting or known)

    def _shaped(self, results: list[Value]) -> list[Value]:
        """The results with the shapes that the table infers, without those of unknown shape."""
        indexes = [v.index for v in results]
        entry = infer_shapes(self.draw.model(indexes)).entry
        shapes = [static_shape(entry.operands[i].shape) for i in indexes]
        return [
            replace(v, shape=s)
            for v, s in zip(results, shapes, strict=True)
            if s is not None and np.prod(s) < 4096
        ]
