"""IF and WHILE."""

from __future__ import annotations

from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site


@lowers(
    "IF", level=4, form="condition:b8 then:model otherwise:model arguments:any* -> results:any*"
)
def if_else(site: Site) -> None:
    shape = site.shape(site.tensor("condition"))
    site.require(shape in {None, (1,), (None,)}, f"a condition of shape {shape}")
    for name in ("then", "otherwise"):
        site.require_takes(name, site.arguments("arguments"))
        site.require_gives(name, site.results())
        site.require(
            len(site.interface(name)[1]) == len(site.results()),
            f"{name} gives {len(site.interface(name)[1])} operands, not {len(site.results())}",
        )
    site.finish(
        "IF",
        [site.tensor("condition"), *site.tensors("arguments")],
        then_subgraph_index=site.subgraph("then"),
        else_subgraph_index=site.subgraph("otherwise"),
    )


@lowers("WHILE", level=4, form="condition:model body:model arguments:any* -> results:any*")
def while_loop(site: Site) -> None:
    """What the body takes and does not give is handed through; state that is only the loop's stays
    inside.
    """
    arguments, outputs = site.arguments("arguments"), site.results()
    taken, given = site.interface("body")
    passed = len(taken) - len(given)
    site.require(passed >= 0, f"a body of {len(given)} outputs and {len(taken)} inputs")
    site.require(
        len(outputs) <= len(given), f"{len(outputs)} outputs of a body that gives {len(given)}"
    )
    site.require_takes("condition", arguments)
    site.require_takes("body", arguments)
    site.require_gives("body", arguments[: len(given)])
    site.require_gives("body", outputs)
    values = site.tensors("arguments")
    results = site.emit_many(
        "WHILE",
        values,
        [site.value_type(v) for v in values],
        cond_subgraph_index=site.subgraph("condition"),
        body_subgraph_index=site.subgraph("body", passed),
    )
    for value, result in zip(values, results, strict=True):
        # Of what stays inside the loop nothing else says so.
        site.graph.annotate(result, site.ir(value).extension)
    for place in range(len(outputs)):
        site.bind(place, results[place])
