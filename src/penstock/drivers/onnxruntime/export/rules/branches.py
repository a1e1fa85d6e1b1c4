"""IF, as ONNX's If: each branch a graph of its own, which reads the values around it."""

from __future__ import annotations

from penstock.driverkit.site import Refused, Site, make_sites, require
from penstock.driverkit.support import UNSTEADY
from penstock.driverkit.unrolling import fits
from penstock.drivers.onnxruntime.export.graph import Graph
from penstock.drivers.onnxruntime.export.rules.rule import RULES, judge, rule
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
    condition = graph.get(site.input_indexes[0])
    if site.shape(0):
        condition = graph.reshape(condition, ())
    given = [graph.get(index) for index in site.input_indexes[1:]]
    made = []
    for index in branches_of(site.operation):
        branch = graph.branch(index, given)
        for inner in make_sites(site.model, index):
            RULES[inner.operation.key].emit(branch, inner)
        branch.finish()
        made.append(branch)
    then, otherwise = made
    results = graph.node_of(
        "If", [condition], len(site.outputs), then_branch=then, else_branch=otherwise
    )
    for at, value in enumerate(results):
        graph.define(site, value, output=at)
