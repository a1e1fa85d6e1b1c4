"""Reductions and searches along axes. What would have no dimension left has the shape [1]."""

from __future__ import annotations

from penstock.errors import NotLowerable
from penstock.ir import DType
from penstock.ir.types import is_static
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site

KINDS = {"REDUCE_SUM": "SUM"}
MAX_RANK = 4


def bind_with_rank(site: Site, result: int, output: int = 0) -> None:
    """Binds *result*, which keeps a dimension: without one it becomes a vector of one element.

    Where its rank is not known before a run, the declared dimensions decide.
    """
    rank, declared = site.rank(result), site.declared(output)
    if rank == 0:
        result = site.reshape(result, (1,))
    elif rank is None:
        if declared is None or not is_static(declared):
            raise NotLowerable(f"the rank of the output of {site.type} is known only when it runs")
        result = site.reshape(result, [d or 0 for d in declared])
    site.bind(output, result)


def _reduce(site: Site, keep: bool) -> None:
    x, axes = site.tensor("x"), site.constant("axes")
    site.require_rank("x", 0, MAX_RANK)
    site.require_rank("axes", 1)
    rank = site.rank(x)
    if axes is not None and rank is not None:
        for axis in axes.reshape(-1).tolist():
            site.axis(axis, rank)
    result = site.emit(
        KINDS.get(site.type, site.type),
        [x, site.tensor("axes")],
        site.result_type(),
        keep_dims=keep,
    )
    bind_with_rank(site, result)


@lowers("MEAN", level=2, form="x:T axes:i32 keep:i -> y:T", T="f32 q8 f16@3 q8s@4")
def mean(site: Site) -> None:
    site.require_same_quantization("x", "y")
    _reduce(site, site.integer("keep") > 0)


def _reduce_keeping(site: Site) -> None:
    site.require_same_quantization("x", "y")
    _reduce(site, site.flag("keep"))


for _name, _types in (
    ("REDUCE_ALL", "b8"),
    ("REDUCE_ANY", "b8"),
    ("REDUCE_MAX", "f16 f32 q8 q8s@4"),
    ("REDUCE_MIN", "f16 f32 q8 q8s@4"),
    ("REDUCE_PROD", "f16 f32"),
    ("REDUCE_SUM", "f16 f32"),
):
    lowers(_name, level=3, form="x:T axes:i32 keep:b -> y:T", T=_types)(_reduce_keeping)


def _search(site: Site, kind: str) -> None:
    x, axis = site.tensor("x"), site.integer("axis")
    rank = site.rank(x)
    if rank is not None:
        axis = site.axis(axis, rank)
    result = site.emit(kind, [x, site.integers((axis,))], (DType.INT32, None), output_type="INT32")
    bind_with_rank(site, result)


@lowers("ARGMAX", level=3, form="x:T axis:i -> index:i32", T="f16 f32 i32 q8 q8s@4")
def argmax(site: Site) -> None:
    _search(site, "ARG_MAX")


@lowers("ARGMIN", level=3, form="x:T axis:i -> index:i32", T="f16 f32 i32 q8 q8s@4")
def argmin(site: Site) -> None:
    _search(site, "ARG_MIN")


@lowers("TOPK_V2", level=3, form="x:T k:i -> values:T indices:i32", T="f16 f32 i32 q8 q8s@4")
def top_k(site: Site) -> None:
    """NNAPI puts the larger index first among equals, the IR the smaller: the last axis is reversed
    before, and the indices count from its end.
    """
    site.require_same_quantization("x", "values")
    x, types = site.tensor("x"), site.result_types()
    axis = site.known_rank(x) - 1
    site.require(axis >= 0, "the input has a dimension at least")
    last = (site.shape(x) or (None,))[-1]
    k = site.integer("k")
    site.require(k > 0 and (last is None or k <= last), f"k is not in [1, {last or 'size'}]")
    mirrored = site.emit("REVERSE_V2", [x, site.integers((axis,))])
    values, indices = site.emit_many("TOPK_V2", [mirrored, site.tensor("k")], types)
    site.bind("values", values)
    greatest = site.compute("SUB", [site.sizes(x, axis, axis + 1), site.integers((1,))])
    site.bind("indices", site.emit("SUB", [greatest, indices]))
