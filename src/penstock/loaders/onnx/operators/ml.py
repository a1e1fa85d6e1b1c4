"""ai.onnx.ml: trees, linear models, scalers. Trees are walked level by level, all of them at once."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.errors import CyclicModel
from penstock.ir.types import DType, NDArray
from penstock.loaders.onnx.calls import Call, operator
from penstock.loaders.onnx.graph import ML
from penstock.loaders.onnx.operators.common import (
    arithmetic,
    cast,
    cast_value,
    comparison,
    concatenate,
    expand,
    number,
    pair,
    reshape,
)
from penstock.loaders.onnx.operators.matmul import connected
from penstock.loaders.onnx.values import Value, constant

MAX_LEVELS: Final = 256
MODES: Final = {
    b"BRANCH_LEQ": "LESS_EQUAL",
    b"BRANCH_LT": "LESS",
    b"BRANCH_GTE": "GREATER_EQUAL",
    b"BRANCH_GT": "GREATER",
    b"BRANCH_EQ": "EQUAL",
    b"BRANCH_NEQ": "NOT_EQUAL",
}
LEAF: Final = b"LEAF"
FLOAT: Final = DType.FLOAT32


class Forest(Struct, frozen=True):
    """Trees as tables over all nodes: feature, threshold, where to go, what to add at a leaf."""

    roots: NDArray
    feature: NDArray
    threshold: NDArray
    mode: NDArray
    missing: NDArray
    true: NDArray
    false: NDArray
    weights: NDArray
    given: NDArray
    """1 where a node has a weight for a target."""

    levels: int


def _array(call: Call, name: str, default: float, count: int) -> NDArray:
    values = call.node.attributes.get(f"{name}_as_tensor")
    if values is not None:
        return np.asarray(values, np.float64).reshape(-1)
    if not call.node.has(name):
        return np.full(count, default)
    return np.array(call.node.numbers(name), np.float64)


def forest(call: Call, prefix: str, targets: int) -> Forest:
    node = call.node
    trees, ids = node.integers("nodes_treeids"), node.integers("nodes_nodeids")
    modes = node.strings("nodes_modes")
    count = len(ids)
    tables = {
        name: node.integers(f"nodes_{name}")
        for name in ("featureids", "truenodeids", "falsenodeids")
    }
    thresholds = _array(call, "nodes_values", 0, count)
    missing = _array(call, "nodes_missing_value_tracks_true", 0, count)
    lengths = {len(trees), len(modes), len(thresholds), len(missing), *map(len, tables.values())}
    if lengths != {count} or not count:
        raise node.invalid("the tables of tree nodes differ in length")
    places = {key: i for i, key in enumerate(zip(trees, ids, strict=True))}
    if len(places) != count:
        raise node.invalid("two tree nodes have one number")
    leaf = np.array([m == LEAF for m in modes])
    unknown = set(modes) - MODES.keys() - {LEAF}
    if unknown:
        raise node.refuse(f"tree nodes of mode {min(unknown)!r}")
    true, false = np.arange(count), np.arange(count)
    for i in range(count):
        if not leaf[i]:
            for table, name in ((true, "truenodeids"), (false, "falsenodeids")):
                target = places.get((trees[i], tables[name][i]))
                if target is None:
                    raise node.invalid(f"tree node {ids[i]} of tree {trees[i]} leads to no node")
                table[i] = target
    call.body.lowering.budget.take(count * targets * 16, node.where)
    weights, given = np.zeros((count, targets)), np.zeros((count, targets))
    owners = [node.integers(f"{prefix}_{n}") for n in ("treeids", "nodeids", "ids")]
    values = _array(call, f"{prefix}_weights", 0, 0)
    if {len(o) for o in owners} != {len(values)}:
        raise node.invalid("the tables of leaf weights differ in length")
    for tree, number_, target, value in zip(*owners, values, strict=True):
        place = places.get((tree, number_))
        if place is None or not 0 <= target < targets:
            raise node.invalid(f"a weight for node {number_} of tree {tree}, target {target}")
        weights[place, target] += value
        given[place, target] = 1
    reached = np.zeros(count, bool)
    reached[true[~leaf]] = reached[false[~leaf]] = True
    first: dict[int, int] = {}
    for i, tree in enumerate(trees):
        if not reached[i]:
            first.setdefault(tree, i)
    if len(first) != len(set(trees)):
        raise CyclicModel("a tree has no root", where=node.where)
    roots = np.array(list(first.values()))
    levels = _levels(call, roots, leaf, true, false)
    kinds = sorted({m for m in modes if m != LEAF})
    index = {m: i for i, m in enumerate(kinds)}
    mode = np.array([index.get(m, 0) for m in modes])
    feature = np.where(leaf, 0, np.array(tables["featureids"]))
    return Forest(roots, feature, thresholds, mode, missing, true, false, weights, given, levels)


def _levels(call: Call, roots: NDArray, leaf: NDArray, true: NDArray, false: NDArray) -> int:
    at, levels = np.unique(roots), 0
    while not leaf[at].all():
        levels += 1
        if levels > min(MAX_LEVELS, len(leaf)):
            raise call.refuse(f"trees of more than {min(MAX_LEVELS, len(leaf))} levels")
        inner = at[~leaf[at]]
        at = np.unique(np.concatenate([true[inner], false[inner]]))
    return levels


def _table(call: Call, table: NDArray, places: int, dtype: type) -> int:
    values = call.emitter.constant(table.astype(dtype))
    return call.emit("GATHER", [values, places], call.emitter.dtype(values), {"axis": 0})


def leaves(call: Call, x: int, trees: Forest) -> int:
    """The leaf of each row in each tree: indices [rows, trees] into the tables."""
    node = call.node
    kinds = [MODES[m] for m in sorted({m for m in node.strings("nodes_modes") if m != LEAF})]
    dims = call.shape(x) or (None, None)
    width = dims[1]
    if width is not None and trees.feature.max(initial=0) >= width:
        raise call.mismatch(f"a tree looks at feature {trees.feature.max()} of {width}")
    start = call.emitter.constant(trees.roots.astype(np.int32)[None])
    rows = call.emit(
        "SLICE",
        [_sizes(call, x), call.emitter.integers([0]), call.emitter.integers([1])],
        DType.INT32,
    )
    times = concatenate(call, [rows, call.emitter.integers([1])], 0)
    at = call.emit("TILE", [start, times], DType.INT32)
    gaps = bool(trees.missing.any())
    for _ in range(trees.levels):
        feature = _table(call, trees.feature, at, np.int32)
        seen = call.emit("GATHER", [x, feature], FLOAT, {"axis": 1, "batch_dims": 1})
        limit = _table(call, trees.threshold, at, np.float32)
        turns = [comparison(call, kind, seen, limit) for kind in kinds]
        turn = turns[0]
        if len(turns) > 1:
            mode = _table(call, trees.mode, at, np.int32)
            for i, other in enumerate(turns[1:], 1):
                chosen = call.emit("EQUAL", [mode, call.scalar(i, DType.INT32)], DType.BOOL)
                turn = call.emit("SELECT_V2", [chosen, other, turn], DType.BOOL)
        if gaps:
            lost = call.emit("NOT_EQUAL", [seen, seen], DType.BOOL)
            tracked = _table(call, trees.missing, at, np.int32)
            follows = call.emit("NOT_EQUAL", [tracked, call.scalar(0, DType.INT32)], DType.BOOL)
            both = call.emit("LOGICAL_AND", [lost, follows], DType.BOOL)
            turn = call.emit("LOGICAL_OR", [turn, both], DType.BOOL)
        yes, no = (_table(call, t, at, np.int32) for t in (trees.true, trees.false))
        at = call.emit("SELECT_V2", [turn, yes, no], DType.INT32)
    return at


def _sizes(call: Call, x: int) -> int:
    return call.emit("SHAPE", [x], DType.INT32, {"out_type": "INT32"})


def _features(call: Call) -> int:
    """The input as a matrix of floats."""
    x = cast_value(call, call.tensor(0), FLOAT)
    operand = call.get(x)
    if x.rank == 1:
        return expand(call, operand, 0)
    if x.rank != 2:
        raise call.mismatch(f"features of shape {x.shape}")
    return operand


def _aggregated(call: Call, table: NDArray, at: int, how: str) -> int:
    values = call.emitter.constant(table.astype(np.float32))
    parts = call.emit("GATHER", [values, at], FLOAT, {"axis": 0})
    kinds = {"SUM": "SUM", "AVERAGE": "MEAN", "MIN": "REDUCE_MIN", "MAX": "REDUCE_MAX"}
    if how not in kinds:
        raise call.node.invalid(f"the aggregation {how!r}")
    return call.emit(kinds[how], [parts, call.emitter.integers([1])], FLOAT)


def _summed(call: Call, x: int, trees: Forest, how: str) -> int:
    return _aggregated(call, trees.weights, leaves(call, x, trees), how)


def _based(call: Call, scores: int, targets: int) -> int:
    base = _array(call, "base_values", 0, 0)
    if not len(base):
        return scores
    if len(base) not in (1, targets):
        raise call.node.invalid(f"{len(base)} base values for {targets} targets")
    return arithmetic(call, "ADD", scores, call.emitter.constant(base.astype(np.float32)))


@operator("TreeEnsembleRegressor", domain=ML)
def tree_regressor(call: Call) -> Value:
    targets = call.node.integer("n_targets", 1)
    if not 1 <= targets <= 1 << 16:
        raise call.node.invalid(f"{targets} targets")
    trees = forest(call, "target", targets)
    how = call.node.text("aggregate_function", "SUM")
    at = leaves(call, _features(call), trees)
    scores = _aggregated(call, trees.weights, at, how)
    based = _based(call, scores, targets)
    if targets > 1 and based != scores:
        # Of several targets only those that some leaf has a weight for get their base value.
        reached = _aggregated(call, trees.given, at, "MAX")
        some = call.emit("GREATER", [reached, number(call, 0.5, FLOAT)], DType.BOOL)
        based = call.emit("SELECT_V2", [some, based, scores], FLOAT)
    return call.wrap(transformed(call, based, call.node.text("post_transform", "NONE")))


def transformed(call: Call, scores: int, how: str) -> int:
    """Scores as probabilities, as `post_transform` says."""
    match how:
        case "NONE":
            return scores
        case "LOGISTIC":
            return call.emit("LOGISTIC", [scores], FLOAT)
        case "SOFTMAX":
            return call.emit("SOFTMAX", [scores], FLOAT, {"beta": 1.0})
        case "SOFTMAX_ZERO":
            zero = call.scalar(0, FLOAT)
            none = call.emit("EQUAL", [scores, zero], DType.BOOL)
            low = call.emit("SELECT_V2", [none, call.scalar(-3.0e38, FLOAT), scores], FLOAT)
            made = call.emit("SOFTMAX", [low], FLOAT, {"beta": 1.0})
            return call.emit("SELECT_V2", [none, zero, made], FLOAT)
    raise call.refuse(f"the post_transform {how!r}")


def _labels(call: Call) -> NDArray:
    """Class labels: integers, or strings as objects."""
    for name in ("classlabels_int64s", "classlabels_ints"):
        if call.node.has(name):
            return np.array(call.node.integers(name), np.int64)
    if call.node.has("classlabels_strings"):
        listed = call.node.strings("classlabels_strings")
        found = np.empty(len(listed), object)
        found[:] = listed
        return found
    raise call.node.invalid("the class labels are missing")


def _named(call: Call, labels: NDArray, places: int) -> Value:
    table = call.emitter.constant(labels)
    return call.wrap(call.emit("GATHER", [table, places], call.emitter.dtype(table), {"axis": 0}))


def _best(call: Call, scores: int) -> int:
    last = call.emitter.constant(np.array(1, np.int32))
    return call.emit("ARG_MAX", [scores, last], DType.INT64, {"output_type": "INT64"})


def _two_sided(call: Call, scores: int, how: str, limit: float, *, rest: bool) -> tuple[int, int]:
    """(label, scores of both classes) of a single score [rows, 1] for the second of two classes:
    the other gets the *rest* to 1, or the negative. Only the logistic transform applies (ONNX
    Runtime).
    """
    chosen = call.emit("GREATER", [scores, number(call, limit, FLOAT)], DType.BOOL)
    if how == "LOGISTIC":
        second = call.emit("LOGISTIC", [scores], FLOAT)
        first = call.emit("LOGISTIC", [call.emit("NEG", [scores], FLOAT)], FLOAT)
    else:
        second = scores
        first = (
            arithmetic(call, "SUB", number(call, 1.0, FLOAT), scores)
            if rest
            else call.emit("NEG", [scores], FLOAT)
        )
    both = concatenate(call, [first, second], 1)
    return reshape(call, cast(call, chosen, DType.INT64), [-1]), both


def _column(call: Call, scores: int, place: int) -> int:
    begin, size = call.emitter.integers([0, place]), call.emitter.integers([-1, 1])
    return call.emit("SLICE", [scores, begin, size], call.emitter.dtype(scores))


@operator("TreeEnsembleClassifier", domain=ML)
def tree_classifier(call: Call) -> list[Value]:
    """The class of the largest sum. Of two classes, rows that reach no weight of the second have
    one score only, that of the first, which then counts for the second (ONNX Runtime).
    """
    labels, how = _labels(call), call.node.text("post_transform", "NONE")
    trees = forest(call, "class", len(labels))
    x = _features(call)
    if len(labels) == 2:
        return _two_classes(call, labels, how, trees, x)
    scores = _based(call, _summed(call, x, trees, "SUM"), len(labels))
    return [_named(call, labels, _best(call, scores)), call.wrap(transformed(call, scores, how))]


def _two_classes(call: Call, labels: NDArray, how: str, trees: Forest, x: int) -> list[Value]:
    ids = set(call.node.integers("class_ids"))
    base = _array(call, "base_values", 0, 0)
    if len(base) > 1 or (len(base) and ids != {0}):
        raise call.refuse(f"{len(base)} base values for two classes")
    positive = len(ids) == 1 and bool((trees.weights >= 0).all())
    limit = 0.5 if positive else 0.0
    at = leaves(call, x, trees)
    scores = _aggregated(call, trees.weights, at, "SUM")
    single = _column(call, scores, 0)
    if len(base):
        single = arithmetic(call, "ADD", single, number(call, float(base[0]), FLOAT))
    one = _two_sided(call, single, how, limit, rest=positive)
    if ids == {0}:
        return [_named(call, labels, one[0]), call.wrap(one[1])]
    second = _column(call, scores, 1)
    above = call.emit("GREATER", [second, number(call, limit, FLOAT)], DType.BOOL)
    label = reshape(call, cast(call, above, DType.INT64), [-1])
    both = transformed(call, scores, how)
    reached = _aggregated(call, trees.given[:, 1:], at, "MAX")
    some = call.emit("GREATER", [reached, number(call, 0.5, FLOAT)], DType.BOOL)
    both = call.emit("SELECT_V2", [some, both, one[1]], FLOAT)
    flat = reshape(call, some, [-1])
    label = call.emit("SELECT_V2", [flat, label, one[0]], DType.INT64)
    return [_named(call, labels, label), call.wrap(both)]


def _linear(call: Call, targets: int) -> int:
    x = _features(call)
    weights = np.array(call.node.numbers("coefficients"), np.float32)
    if targets < 1 or len(weights) % targets:
        raise call.node.invalid(f"{len(weights)} coefficients for {targets} targets")
    bias = None
    if call.node.has("intercepts"):
        bias = np.array(call.node.numbers("intercepts"), np.float32)
        if len(bias) != targets:
            raise call.node.invalid(f"{len(bias)} intercepts for {targets} targets")
    return connected(call, x, weights.reshape(targets, -1), bias)


@operator("LinearRegressor", domain=ML)
def linear_regressor(call: Call) -> Value:
    scores = _linear(call, call.node.integer("targets", 1))
    return call.wrap(transformed(call, scores, call.node.text("post_transform", "NONE")))


@operator("LinearClassifier", domain=ML)
def linear_classifier(call: Call) -> list[Value]:
    labels, how = _labels(call), call.node.text("post_transform", "NONE")
    count = len(call.node.numbers("intercepts")) if call.node.has("intercepts") else len(labels)
    scores = _linear(call, count)
    if len(labels) == 2 and count == 1:
        label, both = _two_sided(call, scores, how, 0.0, rest=True)
        return [_named(call, labels, label), call.wrap(both)]
    return [_named(call, labels, _best(call, scores)), call.wrap(transformed(call, scores, how))]


@operator("Normalizer", domain=ML)
def normalizer(call: Call) -> Value:
    """Rows over their largest magnitude, the sum of magnitudes, or their length."""
    x = cast_value(call, call.tensor(0), FLOAT)
    operand = call.get(x)
    last = call.emitter.integers([(x.rank or 1) - 1])
    how = call.node.text("norm", "MAX")
    if how == "L2":
        square = arithmetic(call, "MUL", operand, operand)
        total = call.emit("SUM", [square, last], FLOAT, {"keep_dims": True})
        size = call.emit("SQRT", [total], FLOAT)
    elif how == "L1":
        sizes = call.emit("ABS", [operand], FLOAT)
        size = call.emit("SUM", [sizes, last], FLOAT, {"keep_dims": True})
    elif how == "MAX":
        size = call.emit("REDUCE_MAX", [operand, last], FLOAT, {"keep_dims": True})
    else:
        raise call.node.invalid(f"the norm {how!r}")
    zero = call.emit("EQUAL", [size, call.scalar(0, FLOAT)], DType.BOOL)
    safe = call.emit("SELECT_V2", [zero, call.scalar(1, FLOAT), size], FLOAT)
    return call.wrap(arithmetic(call, "DIV", operand, safe))


@operator("Scaler", domain=ML)
def scaler(call: Call) -> Value:
    x = cast_value(call, call.tensor(0), FLOAT)
    offset, scale = (
        constant(np.array(call.node.numbers(n, (v,)), np.float32))
        for n, v in (("offset", 0.0), ("scale", 1.0))
    )
    return pair(call, "MUL", pair(call, "SUB", x, offset), scale)


@operator("Binarizer", domain=ML)
def binarizer(call: Call) -> Value:
    x = call.tensor(0)
    limit = call.scalar(call.node.number("threshold", 0.0), x.dtype)
    above = comparison(call, "GREATER", call.get(x), limit)
    return call.wrap(cast(call, above, x.dtype))


@operator("Imputer", domain=ML)
def imputer(call: Call) -> Value:
    """What is missing, a value or what is not a number, replaced column by column."""
    x = call.tensor(0)
    name = "imputed_value_floats" if x.dtype.is_float else "imputed_value_int64s"
    filling = constant(np.array(call.node.numbers(name)).astype(x.dtype.numpy))
    operand = call.get(x)
    replaced = call.node.number("replaced_value_float", 0.0)
    if not x.dtype.is_float:
        replaced = float(call.node.integer("replaced_value_int64", 0))
    if math.isnan(replaced):
        lost = comparison(call, "NOT_EQUAL", operand, operand)
    else:
        lost = comparison(call, "EQUAL", operand, call.scalar(replaced, x.dtype))
    return call.wrap(call.emit("SELECT_V2", [lost, call.get(filling), operand], x.dtype))


@operator("ArrayFeatureExtractor", domain=ML)
def extractor(call: Call) -> Value:
    x, places = call.tensor(0), call.tensor(1)
    operand = call.get(x)
    if x.rank == 1:
        operand = expand(call, operand, 0)
    axis = len(call.shape(operand) or ()) - 1
    flat = reshape(call, call.get(places), [-1])
    return call.wrap(call.emit("GATHER", [operand, flat], x.dtype, {"axis": axis}))


@operator("FeatureVectorizer", domain=ML)
def vectorizer(call: Call) -> Value:
    parts = [call.get(cast_value(call, call.tensor(i), FLOAT)) for i in range(len(call.inputs))]
    parts = [expand(call, p, 0) if len(call.shape(p) or ()) == 1 else p for p in parts]
    return call.wrap(concatenate(call, parts, 1))


def _keys(call: Call) -> tuple[NDArray, NDArray, NDArray]:
    """(keys, values, default) of a label encoder."""
    node = call.node
    for kinds in ("int64s", "strings", "floats"):
        if node.has(f"keys_{kinds}"):
            keys = node.attributes[f"keys_{kinds}"]
            break
    else:
        raise call.refuse("a label encoder without lists of keys")
    for kinds, default in (("int64s", -1), ("floats", 0.0), ("strings", b"_Unused")):
        if node.has(f"values_{kinds}"):
            values = node.attributes[f"values_{kinds}"]
            other = node.attributes.get(f"default_{kinds[:-1]}", default)
            return _vector(keys), _vector(values), _vector([other])
    raise call.refuse("a label encoder without lists of values")


def _vector(items: list[object]) -> NDArray:
    if items and isinstance(items[0], bytes):
        found = np.empty(len(items), object)
        found[:] = items
        return found
    dtype = np.int64 if items and type(items[0]) is int else np.float32
    return np.array(items, dtype)


@operator("LabelEncoder", domain=ML)
def label_encoder(call: Call) -> Value:
    """The place of the key that each element equals picks its value; the default stands behind the
    last.
    """
    x = call.tensor(0)
    keys, values, default = _keys(call)
    if len(keys) != len(values) or not len(keys):
        raise call.node.invalid(f"{len(keys)} keys and {len(values)} values")
    if x.dtype is DType.STRING and keys.dtype != object:
        raise call.node.invalid("strings are looked up among numbers")
    operand = expand(call, call.get(x), x.rank or 0)
    same = comparison(call, "EQUAL", operand, call.emitter.constant(keys))
    rank = (x.rank or 0) + 1
    last = call.emitter.integers([rank - 1])
    wide = cast(call, same, DType.INT32)
    axis = call.emitter.constant(np.array(rank - 1, np.int32))
    first = call.emit("ARG_MAX", [wide, axis], DType.INT64, {"output_type": "INT64"})
    found = call.emit("REDUCE_ANY", [same, last], DType.BOOL)
    beyond = call.scalar(len(keys), DType.INT64)
    places = call.emit("SELECT_V2", [found, first, beyond], DType.INT64)
    return _named(call, np.concatenate([values, default.astype(values.dtype)]), places)


@operator("OneHotEncoder", domain=ML)
def one_hot_encoder(call: Call) -> Value:
    x = call.tensor(0)
    name = "cats_strings" if x.dtype is DType.STRING else "cats_int64s"
    keys = _vector(
        list(call.node.strings(name) if name == "cats_strings" else call.node.integers(name))
    )
    if not call.node.integer("zeros", 1):
        raise call.refuse("categories that must be known")
    if x.dtype not in {DType.STRING, DType.INT64}:
        x = cast_value(call, x, DType.INT64)
    operand = expand(call, call.get(x), x.rank or 0)
    same = comparison(call, "EQUAL", operand, call.emitter.constant(keys))
    return call.wrap(cast(call, same, FLOAT))


@operator("ZipMap", domain=ML)
def zip_map(call: Call) -> Value:
    """The probabilities as they are, a column a class: there are no maps here."""
    return call.tensor(0)
