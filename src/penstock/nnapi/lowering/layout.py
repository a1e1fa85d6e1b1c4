"""Operations that move elements: reshaping, padding, slicing, joining, gathering."""

from __future__ import annotations

import numpy as np

from penstock.errors import InvalidAttribute, NotLowerable, ShapeMismatch
from penstock.ir.types import is_static
from penstock.nnapi.lowering.normalization import bind_with_rank
from penstock.nnapi.lowering.operation import OperationLowering
from penstock.nnapi.lowering.registry import lowers, maps
from penstock.nnapi.lowering.windows import LAYOUT, bind_image, image

MANY = "f16 f32 i32 q8 q8s@4"
OLD = "f32 q8 f16@3 q8s@4"

maps("RANK", level=4, form="x:T -> rank:i", T="any")


@lowers(
    "RESHAPE",
    level=1,
    form="x:T/1-4 shape:i32/1 -> y:T",
    same="x y",
    T="f32 q8 f16@3 q8s@4 i32@6",
)
def reshape(op: OperationLowering) -> None:
    value = op.constant("shape")
    known = () if value is None else tuple(value.reshape(-1).tolist())
    if known.count(-1) > 1 or min(known, default=1) < -1:
        raise InvalidAttribute(f"shape {known} of RESHAPE has more than one -1, or what is no size")
    op.pass_through(new_shape=known)


@lowers("SQUEEZE", level=2, form="x:T/1-4 dims:i32? -> y:T", same="x y", T=OLD)
def squeeze(op: OperationLowering) -> None:
    """The IR's dimensions are an attribute. If they are unknown, the declared shape is used."""
    x, dims = op.tensor("x"), op.constant("dims")
    if op.given("dims") and dims is None:
        declared = op.declared(0)
        if declared is None or not is_static(declared):
            raise NotLowerable(f"the shape of the output of {op.type} is known only when it runs")
        op.bind(0, op.reshape(x, [d or 0 for d in declared]))
        return
    axes = () if dims is None else tuple(dims.reshape(-1).tolist())
    bind_with_rank(op, op.emit("SQUEEZE", [x], squeeze_dims=axes))


@lowers("EXPAND_DIMS", level=3, form="x:T axis:i -> y:T", same="x y", T=MANY)
def expand_dims(op: OperationLowering) -> None:
    x, axis = op.tensor("x"), op.integer("axis")
    rank = op.rank(x)
    axis = op.axis(axis, None if rank is None else rank + 1)
    op.finish("EXPAND_DIMS", [x, op.integers((axis,))])


@lowers("TRANSPOSE", level=2, form="x:T/1-4 order:i32? -> y:T", same="x y", T=OLD)
def transpose(op: OperationLowering) -> None:
    if op.given("order"):
        op.require_numbers("order", "x")
        op.pass_through()
        return
    x = op.tensor("x")
    op.finish("TRANSPOSE", [x, op.integers(range(op.known_rank(x))[::-1])])


@lowers("PAD", level=2, form="x:T/1-4 paddings:i32/2 -> y:T", same="x y", T=OLD)
def pad(op: OperationLowering) -> None:
    _check_paddings(op)
    op.pass_through()


@lowers(
    "PAD_V2",
    level=3,
    form=("x:T paddings:i32/2 value:real -> y:T", "x:Q paddings:i32/2 value:i -> y:Q"),
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


@lowers(
    "MIRROR_PAD",
    level=7,
    form="x:T paddings:i32/2 mode:i -> y:T",
    same="x y",
    T="f16 f32 i32 q8 q8s",
)
def mirror_pad(op: OperationLowering) -> None:
    _check_paddings(op)
    mode = op.integer("mode")
    if mode not in {0, 1}:
        raise InvalidAttribute(f"mode {mode} of MIRROR_PAD is neither 0 nor 1")
    op.pass_through(mode=("REFLECT", "SYMMETRIC")[mode])


def _check_paddings(op: OperationLowering) -> None:
    shape, rank = op.shape_of("paddings"), op.rank(op.tensor("x"))
    if shape is not None and (shape[1] not in {None, 2} or (rank and shape[0] not in {None, rank})):
        raise ShapeMismatch(f"paddings of shape {shape} for an input of rank {rank}")
    value = op.constant("paddings")
    if value is not None and value.size and value.min() < 0:
        raise InvalidAttribute(f"paddings of {op.type} are negative")


@lowers(
    "SPACE_TO_BATCH_ND",
    level=2,
    form=f"x:T block:i32/1 paddings:i32 [{LAYOUT}] -> y:T",
    same="x y",
    T=OLD,
)
def space_to_batch(op: OperationLowering) -> None:
    _check_block(op)
    inputs = [image(op, "x"), *op.named_tensors(("block", "paddings"))]
    bind_image(op, op.emit("SPACE_TO_BATCH_ND", inputs))


@lowers("BATCH_TO_SPACE_ND", level=2, form=f"x:T block:i32/1 [{LAYOUT}] -> y:T", same="x y", T=OLD)
def batch_to_space(op: OperationLowering) -> None:
    _check_block(op)
    inputs = [image(op, "x"), op.tensor("block"), op.table([(0, 0), (0, 0)])]
    bind_image(op, op.emit("BATCH_TO_SPACE_ND", inputs))


def _check_block(op: OperationLowering) -> None:
    value = op.constant("block")
    if value is not None and (value.size != 2 or value.min() < 1):
        raise InvalidAttribute(f"block {value.reshape(-1).tolist()} of {op.type} is not two sizes")


def _with_block(op: OperationLowering) -> None:
    bind_image(op, op.emit(op.type, [image(op, "x")], block_size=op.integer("block")))


for _name in ("SPACE_TO_DEPTH", "DEPTH_TO_SPACE"):
    lowers(_name, level=1, form=f"x:T block:i>0 [{LAYOUT}] -> y:T", same="x y", T=OLD)(_with_block)


@lowers("SLICE", level=3, form="x:T begin:i32 size:i32 -> y:T", same="x y", T=MANY)
def slice_(op: OperationLowering) -> None:
    for name in ("begin", "size"):
        op.require_numbers(name, "x")
    op.pass_through()


@lowers(
    "STRIDED_SLICE",
    level=2,
    form="x:T/1-4 begin:i32 end:i32 strides:i32 begin_mask:i end_mask:i shrink_mask:i -> y:T",
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
    for name in ("begin", "end", "strides"):
        op.require_numbers(name, "x")
    shape, mask = op.shape_of("x"), op.integer("shrink_mask")
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


@lowers("CONCATENATION", level=1, form="parts:T+ axis:i -> y:T", T=OLD)
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


@lowers("SPLIT", level=3, form="x:T axis:i count:i>0 -> parts:T+", same="x parts", T=MANY)
def split(op: OperationLowering) -> None:
    x, count = op.tensor("x"), op.integer("count")
    outputs = len(op.operation.outputs)
    op.require(count == outputs, f"{count} parts for {outputs} outputs")
    axis = op.axis(op.integer("axis"), op.rank(x))
    op.finish("SPLIT", [op.graph.constant(np.array(axis, np.int32)), x], num_splits=count)


@lowers("PACK", level=6, form="axis:i parts:T+ -> y:T", same="parts y", T="f16 f32 i32 q8 q8s")
def pack(op: OperationLowering) -> None:
    parts = op.tensors("parts")
    rank = op.rank(parts[0])
    axis = op.axis(op.integer("axis"), None if rank is None else rank + 1, negative=False)
    op.finish("PACK", parts, values_count=len(parts), axis=axis)


@lowers("TILE", level=3, form="x:T multiples:i32 -> y:T", same="x y", T=MANY)
def tile(op: OperationLowering) -> None:
    op.require_numbers("multiples", "x")
    op.pass_through()


@lowers("GATHER", level=3, form="x:T axis:i indices:i32 -> y:T", same="x y", T=MANY)
def gather(op: OperationLowering) -> None:
    axis = op.axis(op.integer("axis"), op.rank(op.tensor("x")))
    op.pass_through(axis=axis, batch_dims=0)


@lowers("REVERSE", level=7, form="x:T/1-8 axis:i32/1 -> y:T", same="x y", T="f16 f32 i32 q8 q8s")
def reverse(op: OperationLowering) -> None:
    axis, rank = op.constant("axis"), op.rank(op.tensor("x"))
    if axis is not None and rank is not None:
        op.require(axis.size == 1, f"{axis.size} axes, where one is reversed")
        op.axis(int(axis[0]), rank, negative=False)
    op.pass_through("REVERSE_V2")


@lowers(
    "FILL",
    level=4,
    form=tuple(
        f"shape:i32/1 value:{scalar} -> y:{tensor}"
        for scalar, tensor in (("f", "f32"), ("h", "f16"), ("i", "i32"))
    ),
)
def fill(op: OperationLowering) -> None:
    op.finish("FILL", op.named_tensors(("shape", "value")))
