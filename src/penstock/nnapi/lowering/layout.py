"""Operations that move elements: reshaping, padding, slicing, joining, gathering."""

from __future__ import annotations

import numpy as np

from penstock.errors import InvalidAttribute, NotLowerable, ShapeMismatch
from penstock.ir.types import is_static
from penstock.nnapi.lowering.normalization import bind_with_rank
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import MANY, OLD, lowers, maps
from penstock.nnapi.lowering.windows import LAYOUT, bind_image, image

maps("RANK", "x:T -> rank:i", T="any")
maps("SLICE", "x:T begin:i32/x size:i32/x -> y:T", same="x y", T=MANY)
maps("TILE", "x:T multiples:i32/x -> y:T", same="x y", T=MANY)


@lowers("RESHAPE", "x:T/1-4 shape:i32/1 -> y:T", same="x y", T=f"{OLD} i32@6")
def reshape(op: OperationLowering) -> None:
    value = op.constant("shape")
    known = () if value is None else tuple(value.reshape(-1).tolist())
    if known.count(-1) > 1 or min(known, default=1) < -1:
        raise InvalidAttribute(f"shape {known} of RESHAPE has more than one -1, or what is no size")
    op.pass_through(new_shape=known)


@lowers("SQUEEZE", "x:T/1-4 dims:i32? -> y:T", same="x y", T=OLD)
def squeeze(op: OperationLowering) -> None:
    """The IR's dimensions are an attribute. If they are unknown, the declared shape is used."""
    x, dims = op.tensor("x"), op.constant("dims")
    if op.given("dims") and dims is None:
        declared = op.results()[0].dimensions
        if declared is None or not is_static(declared):
            raise NotLowerable(f"the shape of the output of {op.type} is known only when it runs")
        op.bind(0, op.reshape(x, [d or 0 for d in declared]))
        return
    axes = () if dims is None else tuple(dims.reshape(-1).tolist())
    bind_with_rank(op, op.emit("SQUEEZE", [x], squeeze_dims=axes))


@lowers("EXPAND_DIMS", "x:T axis:i -> y:T", same="x y", T=MANY)
def expand_dims(op: OperationLowering) -> None:
    x, axis = op.tensor("x"), op.integer("axis")
    rank = op.rank(x)
    axis = op.axis(axis, None if rank is None else rank + 1)
    op.finish("EXPAND_DIMS", [x, op.integers((axis,))])


@lowers("TRANSPOSE", "x:T/1-4 order:i32/x? -> y:T", same="x y", T=OLD)
def transpose(op: OperationLowering) -> None:
    x = op.tensor("x")
    given = op.given("order")
    order = op.tensor("order") if given else op.integers(range(op.known_rank(x))[::-1])
    op.finish("TRANSPOSE", [x, order])


@lowers("PAD", "x:T/1-4 paddings:i32/2 -> y:T", same="x y", T=OLD)
def pad(op: OperationLowering) -> None:
    _check_paddings(op)
    op.pass_through()


@lowers(
    "PAD_V2",
    "x:T paddings:i32/2 value:real -> y:T",
    "x:Q paddings:i32/2 value:i -> y:Q",
    same="x y",
    T="f16 f32",
    Q="q8 q8s@4",
)
def pad_v2(op: OperationLowering) -> None:
    """PAD_V2: the padding value of quantised tensors is a stored value."""
    _check_paddings(op)
    x, paddings, value = op.named_tensors(("x", "paddings", "value"))
    if "Q" in op.types:
        dtype = op.dtype(x).numpy
        stored, limits = op.integer("value"), np.iinfo(dtype)
        if not limits.min <= stored <= limits.max:
            raise InvalidAttribute(
                f"value {stored} of PAD_V2 is not in [{limits.min}, {limits.max}]"
            )
        value = op.graph.constant(np.array(stored, dtype), op.ir(x).quantization)
    op.finish("PADV2", [x, paddings, value])


@lowers("MIRROR_PAD", "x:T paddings:i32/2 mode:i -> y:T", same="x y", T=MANY)
def mirror_pad(op: OperationLowering) -> None:
    _check_paddings(op)
    op.pass_through(mode=op.choice("mode", {0: "REFLECT", 1: "SYMMETRIC"}))


def _check_paddings(op: OperationLowering) -> None:
    shape, rank = op.shape("paddings"), op.rank("x")
    if shape is not None and (shape[1] not in {None, 2} or (rank and shape[0] not in {None, rank})):
        raise ShapeMismatch(f"paddings of shape {shape} for an input of rank {rank}")
    value = op.constant("paddings")
    if value is not None and value.size and value.min() < 0:
        raise InvalidAttribute(f"paddings of {op.type} are negative")


@lowers("SPACE_TO_BATCH_ND", f"x:T block:i32/1 paddings:i32 [{LAYOUT}] -> y:T", same="x y", T=OLD)
@lowers("BATCH_TO_SPACE_ND", f"x:T block:i32/1 [{LAYOUT}] -> y:T", same="x y", T=OLD)
def _batches(op: OperationLowering) -> None:
    block = op.constant("block")
    if block is not None and (block.size != 2 or block.min() < 1):
        raise InvalidAttribute(f"block {block.reshape(-1).tolist()} of {op.type} is not two sizes")
    padded = op.type == "SPACE_TO_BATCH_ND"
    margins = op.tensor("paddings") if padded else op.integers([(0, 0), (0, 0)])
    bind_image(op, op.emit(op.type, [image(op, "x"), op.tensor("block"), margins]))


@lowers("SPACE_TO_DEPTH DEPTH_TO_SPACE", f"x:T block:i>0 [{LAYOUT}] -> y:T", same="x y", T=OLD)
def _with_block(op: OperationLowering) -> None:
    bind_image(op, op.emit(op.type, [image(op, "x")], block_size=op.integer("block")))


@lowers(
    "STRIDED_SLICE",
    "x:T/1-4 begin:i32/x end:i32/x strides:i32/x begin_mask:i end_mask:i shrink_mask:i -> y:T",
    same="x y",
    T=OLD,
)
def strided_slice(op: OperationLowering) -> None:
    _check_strides(op)
    result = op.emit(
        "STRIDED_SLICE",
        op.named_tensors(("x", "begin", "end", "strides")),
        begin_mask=op.integer("begin_mask"),
        end_mask=op.integer("end_mask"),
        shrink_axis_mask=op.integer("shrink_mask"),
    )
    bind_with_rank(op, result)


def _check_strides(op: OperationLowering) -> None:
    """No stride is 0. A dropped dimension has one element, and a stride above 0."""
    shape, mask = op.shape("x"), op.integer("shrink_mask")
    begin, end, strides = (op.constant(n) for n in ("begin", "end", "strides"))
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
        first = None if op.integer("begin_mask") >> axis & 1 else int(begin.reshape(-1)[axis])
        last = None if op.integer("end_mask") >> axis & 1 else int(end.reshape(-1)[axis])
        count = len(range(*slice(first, last, steps[axis]).indices(size)))
        if count != 1:
            raise ShapeMismatch(
                f"dimension {axis}, which STRIDED_SLICE drops, keeps {count} elements"
            )


@lowers("CONCATENATION", "parts:T+ axis:i -> y:T", T=OLD)
def concatenation(op: OperationLowering) -> None:
    """Inputs with another quantisation than the result's are first converted to it."""
    parts = op.tensors("parts")
    ranks = [r for r in map(op.rank, parts) if r is not None]
    for rank in ranks:
        if not 1 <= rank <= 4:
            raise ShapeMismatch(
                f"an input of CONCATENATION has rank {rank}, where 1 to 4 is needed"
            )
    axis = op.axis(op.integer("axis"), ranks[0] if ranks else None, negative=False)
    if op.feature_level < 3:
        op.require_same_quantization("parts", "y")
    result = op.result_type()
    op.finish("CONCATENATION", [op.requantized(p, result) for p in parts], axis=axis)


@lowers("SPLIT", "x:T axis:i count:i>0 -> parts:T+", same="x parts", T=MANY)
def split(op: OperationLowering) -> None:
    x, count = op.tensor("x"), op.integer("count")
    outputs = len(op.operation.outputs)
    op.require(count == outputs, f"{count} parts for {outputs} outputs")
    axis = op.axis(op.integer("axis"), op.rank(x))
    op.finish("SPLIT", [op.graph.constant(np.array(axis, np.int32)), x], num_splits=count)


@lowers("PACK", "axis:i parts:T+ -> y:T", same="parts y", T=MANY)
def pack(op: OperationLowering) -> None:
    parts = op.tensors("parts")
    rank = op.rank(parts[0])
    axis = op.axis(op.integer("axis"), None if rank is None else rank + 1, negative=False)
    op.finish("PACK", parts, values_count=len(parts), axis=axis)


@lowers("GATHER", "x:T axis:i indices:i32 -> y:T", same="x y", T=MANY)
def gather(op: OperationLowering) -> None:
    axis = op.axis(op.integer("axis"), op.rank("x"))
    op.pass_through(axis=axis, batch_dims=0)


@lowers("REVERSE", "x:T/1-8 axis:i32/1 -> y:T", same="x y", T=MANY)
def reverse(op: OperationLowering) -> None:
    axis, rank = op.constant("axis"), op.rank("x")
    if axis is not None and rank is not None:
        op.require(axis.size == 1, f"{axis.size} axes, where one is reversed")
        op.axis(int(axis[0]), rank, negative=False)
    op.pass_through("REVERSE_V2")


@lowers(
    "FILL",
    *(f"shape:i32/1 value:{kind} -> y:{kind}32" for kind in "fi"),
    "shape:i32/1 value:h -> y:f16",
)
def fill(op: OperationLowering) -> None:
    op.finish("FILL", op.named_tensors(("shape", "value")))
