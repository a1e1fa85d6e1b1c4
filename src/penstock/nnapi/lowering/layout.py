"""Operations that move elements: reshaping, padding, slicing, joining, gathering."""

from __future__ import annotations

import numpy as np

from penstock.errors import InvalidAttribute, NotLowerable, ShapeMismatch
from penstock.ir.types import is_static
from penstock.nnapi.lowering.normalization import bind_with_rank
from penstock.nnapi.lowering.registry import lowers
from penstock.nnapi.lowering.site import Site
from penstock.nnapi.lowering.windows import LAYOUT, bind_image, image

MANY = "f16 f32 i32 q8 q8s@4"
OLD = "f32 q8 f16@3 q8s@4"


@lowers("RESHAPE", level=1, form="x:T shape:i32 -> y:T", T="f32 q8 f16@3 q8s@4 i32@6")
def reshape(site: Site) -> None:
    site.require_same_quantization("x", "y")
    site.require_rank("x", 1, 4)
    site.require_rank("shape", 1)
    value = site.constant("shape")
    known = () if value is None else tuple(value.reshape(-1).tolist())
    if known.count(-1) > 1 or min(known, default=1) < -1:
        raise InvalidAttribute(f"shape {known} of RESHAPE has more than one -1, or what is no size")
    site.finish("RESHAPE", [site.tensor("x"), site.tensor("shape")], new_shape=known)


@lowers("SQUEEZE", level=2, form="x:T dims:i32? -> y:T", T=OLD)
def squeeze(site: Site) -> None:
    """The IR's dimensions are an attribute: where they come with a run, the declared shape is taken
    instead.
    """
    site.require_same_quantization("x", "y")
    site.require_rank("x", 1, 4)
    x, dims = site.tensor("x"), site.constant("dims")
    if site.given("dims") and dims is None:
        site.bind(0, _declared_reshape(site, x))
        return
    axes = () if dims is None else tuple(dims.reshape(-1).tolist())
    bind_with_rank(site, site.emit("SQUEEZE", [x], squeeze_dims=axes))


def _declared_reshape(site: Site, x: int) -> int:
    declared = site.declared(0)
    if declared is None or not is_static(declared):
        raise NotLowerable(f"the shape of the output of {site.type} is known only when it runs")
    return site.reshape(x, [d or 0 for d in declared])


@lowers("EXPAND_DIMS", level=3, form="x:T axis:i -> y:T", T=MANY)
def expand_dims(site: Site) -> None:
    site.require_same_quantization("x", "y")
    x, axis = site.tensor("x"), site.integer("axis")
    rank = site.rank(x)
    if rank is not None:
        axis = site.axis(axis, rank + 1)
    site.finish("EXPAND_DIMS", [x, site.integers((axis,))])


@lowers("TRANSPOSE", level=2, form="x:T order:i32? -> y:T", T=OLD)
def transpose(site: Site) -> None:
    site.require_same_quantization("x", "y")
    site.require_rank("x", 1, 4)
    x = site.tensor("x")
    if site.given("order"):
        site.require_numbers("order", "x")
        site.finish("TRANSPOSE", [x, site.tensor("order")])
        return
    site.finish("TRANSPOSE", [x, site.integers(range(site.known_rank(x))[::-1])])


@lowers("PAD", level=2, form="x:T paddings:i32 -> y:T", T=OLD)
def pad(site: Site) -> None:
    site.require_same_quantization("x", "y")
    site.require_rank("x", 1, 4)
    _check_paddings(site)
    site.finish("PAD", [site.tensor("x"), site.tensor("paddings")])


@lowers(
    "PAD_V2",
    level=3,
    form=("x:T paddings:i32 value:real -> y:T", "x:Q paddings:i32 value:i -> y:Q"),
    T="f16 f32",
    Q="q8 q8s@4",
)
def pad_v2(site: Site) -> None:
    """The value beside quantised tensors is a stored one."""
    site.require_same_quantization("x", "y")
    _check_paddings(site)
    x = site.tensor("x")
    value = site.tensor("value")
    if "Q" in site.types:
        stored, limits = site.integer("value"), np.iinfo(site.dtype(x).numpy)
        if not limits.min <= stored <= limits.max:
            raise InvalidAttribute(
                f"value {stored} of PAD_V2 is not in [{limits.min}, {limits.max}]"
            )
        value = site.graph.constant(np.array(stored, site.dtype(x).numpy), site.ir(x).quantization)
    site.finish("PADV2", [x, site.tensor("paddings"), value])


@lowers("MIRROR_PAD", level=7, form="x:T paddings:i32 mode:i -> y:T", T="f16 f32 i32 q8 q8s")
def mirror_pad(site: Site) -> None:
    site.require_same_quantization("x", "y")
    _check_paddings(site)
    mode = site.integer("mode")
    if mode not in {0, 1}:
        raise InvalidAttribute(f"mode {mode} of MIRROR_PAD is neither 0 nor 1")
    site.finish(
        "MIRROR_PAD",
        [site.tensor("x"), site.tensor("paddings")],
        mode=("REFLECT", "SYMMETRIC")[mode],
    )


def _check_paddings(site: Site) -> None:
    site.require_rank("paddings", 2)
    shape = site.shape(site.tensor("paddings"))
    rank = site.rank(site.tensor("x"))
    if shape is not None and (shape[1] not in {None, 2} or (rank and shape[0] not in {None, rank})):
        raise ShapeMismatch(f"paddings of shape {shape} for an input of rank {rank}")
    value = site.constant("paddings")
    if value is not None and value.size and value.min() < 0:
        raise InvalidAttribute(f"paddings of {site.type} are negative")


@lowers("SPACE_TO_BATCH_ND", level=2, form=f"x:T block:i32 paddings:i32 [{LAYOUT}] -> y:T", T=OLD)
def space_to_batch(site: Site) -> None:
    site.require_same_quantization("x", "y")
    _check_block(site)
    data = image(site, "x")
    result = site.emit("SPACE_TO_BATCH_ND", [data, site.tensor("block"), site.tensor("paddings")])
    bind_image(site, result)


@lowers("BATCH_TO_SPACE_ND", level=2, form=f"x:T block:i32 [{LAYOUT}] -> y:T", T=OLD)
def batch_to_space(site: Site) -> None:
    site.require_same_quantization("x", "y")
    _check_block(site)
    data = image(site, "x")
    crops = site.table([(0, 0), (0, 0)])
    bind_image(site, site.emit("BATCH_TO_SPACE_ND", [data, site.tensor("block"), crops]))


def _check_block(site: Site) -> None:
    site.require_rank("block", 1)
    value = site.constant("block")
    if value is not None and (value.size != 2 or value.min() < 1):
        raise InvalidAttribute(
            f"block {value.reshape(-1).tolist()} of {site.type} is not two sizes"
        )


@lowers("SPACE_TO_DEPTH", level=1, form=f"x:T block:i [{LAYOUT}] -> y:T", T=OLD)
def space_to_depth(site: Site) -> None:
    site.require_same_quantization("x", "y")
    block = site.positive("block")
    bind_image(site, site.emit("SPACE_TO_DEPTH", [image(site, "x")], block_size=block))


@lowers("DEPTH_TO_SPACE", level=1, form=f"x:T block:i [{LAYOUT}] -> y:T", T=OLD)
def depth_to_space(site: Site) -> None:
    site.require_same_quantization("x", "y")
    block = site.positive("block")
    bind_image(site, site.emit("DEPTH_TO_SPACE", [image(site, "x")], block_size=block))


@lowers("SLICE", level=3, form="x:T begin:i32 size:i32 -> y:T", T=MANY)
def slice_(site: Site) -> None:
    site.require_same_quantization("x", "y")
    for name in ("begin", "size"):
        site.require_numbers(name, "x")
    site.finish("SLICE", [site.tensor(name) for name in ("x", "begin", "size")])


@lowers(
    "STRIDED_SLICE",
    level=2,
    form="x:T begin:i32 end:i32 strides:i32 begin_mask:i end_mask:i shrink_mask:i -> y:T",
    T=OLD,
)
def strided_slice(site: Site) -> None:
    site.require_same_quantization("x", "y")
    site.require_rank("x", 1, 4)
    _check_strides(site)
    result = site.emit(
        "STRIDED_SLICE",
        [site.tensor(name) for name in ("x", "begin", "end", "strides")],
        begin_mask=site.integer("begin_mask"),
        end_mask=site.integer("end_mask"),
        shrink_axis_mask=site.integer("shrink_mask"),
    )
    bind_with_rank(site, result)


def _check_strides(site: Site) -> None:
    """Strides are not 0; a dimension that is dropped has one element, and a stride above 0."""
    for name in ("begin", "end", "strides"):
        site.require_numbers(name, "x")
    shape, mask = site.shape(site.tensor("x")), site.integer("shrink_mask")
    begin, end, strides = (site.constant(n) for n in ("begin", "end", "strides"))
    if strides is None:
        return
    steps = strides.reshape(-1).tolist()
    if 0 in steps:
        raise InvalidAttribute("a stride of STRIDED_SLICE is 0")
    dropped = [a for a in range(len(steps)) if mask >> a & 1]
    if any(steps[a] < 0 for a in dropped):
        raise InvalidAttribute("a dimension that STRIDED_SLICE drops has a negative stride")
    if shape is None or begin is None or end is None or len(shape) != len(steps):
        return
    for axis in dropped:
        size = shape[axis]
        if size is None:
            continue
        first = None if site.integer("begin_mask") >> axis & 1 else int(begin.reshape(-1)[axis])
        last = None if site.integer("end_mask") >> axis & 1 else int(end.reshape(-1)[axis])
        count = len(range(*slice(first, last, steps[axis]).indices(size)))
        if count != 1:
            raise ShapeMismatch(
                f"dimension {axis}, which STRIDED_SLICE drops, keeps {count} elements"
            )


@lowers("CONCATENATION", level=1, form="parts:T+ axis:i -> y:T", T=OLD)
def concatenation(site: Site) -> None:
    """Parts of another quantisation than the result's take on that first."""
    parts = site.tensors("parts")
    ranks = [r for r in map(site.rank, parts) if r is not None]
    for rank in ranks:
        if not 1 <= rank <= 4:
            raise ShapeMismatch(
                f"an input of CONCATENATION has rank {rank}, where 1 to 4 is needed"
            )
    axis, result = site.integer("axis"), site.result_type()
    if ranks:
        axis = site.axis(axis, ranks[0], negative=False)
    if site.feature_level < 3:
        site.require_same_quantization("parts", "y")
    site.finish("CONCATENATION", [site.requantized(p, result) for p in parts], axis=axis)


@lowers("SPLIT", level=3, form="x:T axis:i count:i -> parts:T+", T=MANY)
def split(site: Site) -> None:
    site.require_same_quantization("x", "parts")
    x, count, axis = site.tensor("x"), site.positive("count"), site.integer("axis")
    site.require(
        count == len(site.operation.outputs),
        f"{count} parts for {len(site.operation.outputs)} outputs",
    )
    rank = site.rank(x)
    if rank is not None:
        axis = site.axis(axis, rank)
    axis_operand = site.graph.constant(np.array(axis, np.int32))
    site.finish("SPLIT", [axis_operand, x], num_splits=count)


@lowers("PACK", level=6, form="axis:i parts:T+ -> y:T", T="f16 f32 i32 q8 q8s")
def pack(site: Site) -> None:
    parts, axis = site.tensors("parts"), site.integer("axis")
    site.require_same_quantization("parts", "y")
    rank = site.rank(parts[0])
    if rank is not None:
        axis = site.axis(axis, rank + 1, negative=False)
    site.finish("PACK", parts, values_count=len(parts), axis=axis)


@lowers("TILE", level=3, form="x:T multiples:i32 -> y:T", T=MANY)
def tile(site: Site) -> None:
    site.require_same_quantization("x", "y")
    site.require_numbers("multiples", "x")
    site.finish("TILE", [site.tensor("x"), site.tensor("multiples")])


@lowers("GATHER", level=3, form="x:T axis:i indices:i32 -> y:T", T=MANY)
def gather(site: Site) -> None:
    site.require_same_quantization("x", "y")
    x, axis = site.tensor("x"), site.integer("axis")
    rank = site.rank(x)
    if rank is not None:
        axis = site.axis(axis, rank)
    site.finish("GATHER", [x, site.tensor("indices")], axis=axis, batch_dims=0)


@lowers("REVERSE", level=7, form="x:T axis:i32 -> y:T", T="f16 f32 i32 q8 q8s")
def reverse(site: Site) -> None:
    site.require_same_quantization("x", "y")
    site.require_rank("x", 1, 8)
    site.require_rank("axis", 1)
    axis, rank = site.constant("axis"), site.rank(site.tensor("x"))
    if axis is not None and rank is not None:
        site.require(axis.size == 1, f"{axis.size} axes, where one is reversed")
        site.axis(int(axis[0]), rank, negative=False)
    site.finish("REVERSE_V2", [site.tensor("x"), site.tensor("axis")])


@lowers(
    "FILL",
    level=4,
    form=("shape:i32 value:f -> y:f32", "shape:i32 value:h -> y:f16", "shape:i32 value:i -> y:i32"),
)
def fill(site: Site) -> None:
    site.require_rank("shape", 1)
    site.finish("FILL", [site.tensor("shape"), site.tensor("value")])


@lowers("RANK", level=4, form="x:T -> rank:i", T="any")
def rank_of(site: Site) -> None:
    site.finish("RANK", [site.tensor("x")])
