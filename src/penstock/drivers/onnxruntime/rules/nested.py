"""IF, as ONNX's If, and UNIDIRECTIONAL_SEQUENCE_LSTM of float32, as ONNX's LSTM."""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.driverkit.checks import activation, activations
from penstock.driverkit.site import Refused, Site, make_sites, require
from penstock.driverkit.support import UNSTEADY
from penstock.driverkit.unrolling import fits
from penstock.drivers.onnxruntime.graph import Graph, Value
from penstock.drivers.onnxruntime.rules.rule import RULES, judge, rule
from penstock.hal import ACCURACY_RANK, AccuracyClass
from penstock.ir.transforms import branches_of


def _check_if(site: Site) -> AccuracyClass:
    require(site.shape(0) in {(), (1,)}, "a condition that is not one truth value")
    found: AccuracyClass = "exact"
    for index in branches_of(site.operation):
        graph = site.model.subgraphs[index]
        alike = fits(graph, site.inputs[1:], site.outputs)
        require(alike, "shapes in its branches are not known, or differ")
        for inner in make_sites(site.model, index):
            kind = inner.operation.key
            require(kind not in UNSTEADY, f"its {kind} turns last bits into positions")
            try:
                accuracy = judge(inner)
            except Refused as refusal:
                raise Refused(f"its {kind}: {refusal}") from None
            found = min(found, accuracy, key=ACCURACY_RANK.__getitem__)
    return found


@rule("IF", check=_check_if)
def emit_if(graph: Graph, site: Site) -> None:
    condition = graph.get(site)
    if site.shape(0):
        condition = graph.reshape(condition, ())
    given = [graph.get(site, position) for position in range(1, len(site.inputs))]
    made = []
    for index in branches_of(site.operation):
        branch = graph.branch(index, given)
        for inner in RULES.lay_out(make_sites(site.model, index), real=graph.portable):
            RULES[inner.operation.key].emit(branch, inner)
        branch.finish()
        made.append(branch)
    count = len(site.outputs)
    results = graph.node_of("If", [condition], count, then_branch=made[0], else_branch=made[1])
    for at, value in enumerate(results):
        graph.put(site, value, at)


GATES: Final = (0, 3, 1, 2)
"""ONNX's gates (input, output, forget, cell) by their position in TFLite's order."""

WEIGHTS, RECURRENT, BIASES, STATES = 1, 5, 12, (18, 19)
"""Positions of the first gate's weights, recurrent weights and bias, and of the states."""


def _check_lstm(site: Site) -> AccuracyClass:
    attributes = site.attributes
    require(activation(site, ["TANH"]) == "TANH", "")
    require(attributes.number("cell_clip") == 0 == attributes.number("proj_clip"), "clipped cells")
    require(not attributes.flag("diagonal_recurrent_tensors"), "diagonal recurrent weights")
    others = (*range(9, 12), 16, 17, *range(20, 24))
    require(not any(map(site.has, others)), "peepholes, a projection or normalised layers")
    hidden, size = site.shape(WEIGHTS)
    steps, batch, _ = _sizes(site)
    for gate in range(4):
        weights: tuple[int, ...] = (hidden, size)
        recurrent = (hidden, hidden)
        for position, shape in ((WEIGHTS, weights), (RECURRENT, recurrent), (BIASES, (hidden,))):
            require(site.shape(position + gate) == shape, "gates of different sizes")
            site.value(position + gate, "a weight")
    for position in STATES:
        require(int(np.prod(site.shape(position))) == batch * hidden, "a state of another size")
    require(site.shape()[-1] == size and steps > 0, "an input of another size")
    return activations(site)


@rule("UNIDIRECTIONAL_SEQUENCE_LSTM", check=_check_lstm)
def emit_lstm(graph: Graph, site: Site) -> None:
    hidden, _ = site.shape(WEIGHTS)
    _, batch, major = _sizes(site)
    x = graph.get(site)
    weights, recurrent, bias = (
        np.concatenate([site.value(first + gate, "a weight") for gate in GATES])
        for first in (WEIGHTS, RECURRENT, BIASES)
    )
    given = [
        _steps_first(graph, x, site.shape(), major=major),
        graph.constant(weights[np.newaxis]),
        graph.constant(recurrent[np.newaxis]),
        graph.constant(np.concatenate([bias, np.zeros_like(bias)])[np.newaxis]),
        "",
        *(graph.reshape(graph.get(site, p), (1, batch, hidden)) for p in STATES),
    ]
    every, *states = graph.node_of("LSTM", given, 3, hidden_size=hidden)
    values: list[Value] = [every if major else graph.transpose(every, (2, 1, 0, 3)), *states]
    for at, _ in enumerate(site.outputs):
        graph.put(site, graph.reshape(values[at], site.output_shape(at)), at)


def _steps_first(graph: Graph, x: Value, shape: tuple[int, ...], *, major: bool) -> Value:
    """The input with its steps as the first dimension."""
    if major:
        return x
    if 1 in shape[:2]:
        return graph.reshape(x, (shape[1], shape[0], shape[2]))
    return graph.transpose(x, (1, 0, 2))


def _sizes(site: Site) -> tuple[int, int, bool]:
    """The number of steps, the batch size, and whether time is the first dimension."""
    shape, major = site.shape(), site.attributes.flag("time_major")
    require(len(shape) == 3, "an input of another rank than 3")
    return (shape[0], shape[1], major) if major else (shape[1], shape[0], major)
