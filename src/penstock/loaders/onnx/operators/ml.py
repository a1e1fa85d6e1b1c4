"""ai.onnx.ml: trees, linear models, scalers. All trees are evaluated at once, level by level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.errors import CyclicModel
from penstock.ir.types import DType, NDArray
from penstock.loaders.onnx.calls import Call, Tensor
from penstock.loaders.onnx.graph import ML
from penstock.loaders.onnx.operators import operator
from penstock.loaders.onnx.operators.elementwise import strings
from penstock.loaders.onnx.operators.matmul import connected
from penstock.loaders.onnx.operators.normalization import scaled
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
    """Trees as tables over all nodes: feature, threshold, next node, weights of a leaf."""

    roots: NDArray
    feature: NDArray
    threshold: NDArray
    mode: NDArray
    missing: NDArray
    true: NDArray
    false: NDArray
    weights: NDArray
    given: NDArray
    """1 if a node has a weight for a target, otherwise 0."""

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
    features, trues, falses = (
        node.integers(f"nodes_{name}") for name in ("featureids", "truenodeids", "falsenodeids")
    )
    thresholds = _array(call, "nodes_values", 0, count)
    missing = _array(call, "nodes_missing_value_tracks_true", 0, count)
    tables = (trees, modes, thresholds, missing, features, trues, falses)
    if not count or any(len(table) != count for table in tables):
        raise node.invalid("the tables of tree nodes differ in length")
    places = {key: i for i, key in enumerate(zip(trees, ids, strict=True))}
    if len(places) != count:
        raise node.invalid("two tree nodes have one number")
    leaf = np.array([m == LEAF for m in modes])
    unknown = set(modes) - MODES.keys() - {LEAF}
    if unknown:
        raise node.refuse(f"tree nodes of mode {min(unknown)!r}")
    true, false = np.arange(count), np.arange(count)
    for i in np.flatnonzero(~leaf).tolist():
        for table, given_ids in ((true, trues), (false, falses)):
            target = places.get((trees[i], given_ids[i]))
            if target is None:
                raise node.invalid(f"tree node {ids[i]} of tree {trees[i]} leads to no node")
            table[i] = target
    call.charge(count * targets * 16)
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
    at, levels, most = np.unique(roots), 0, min(MAX_LEVELS, count)
    while not leaf[at].all():
        levels += 1
        if levels > most:
            raise call.refuse(f"trees of more than {most} levels")
        inner = at[~leaf[at]]
        at = np.unique(np.concatenate([true[inner], false[inner]]))
    index = {m: i for i, m in enumerate(sorted(set(modes) - {LEAF}))}
    mode = np.array([index.get(m, 0) for m in modes])
    feature = np.where(leaf, 0, np.array(features))
    return Forest(roots, feature, thresholds, mode, missing, true, false, weights, given, levels)


def _table(table: NDArray, places: Tensor, dtype: type) -> Tensor:
    return places.call.literal(table.astype(dtype)).gather(places, 0)


def leaves(x: Tensor, trees: Forest) -> Tensor:
    """The leaf of each row in each tree: indices [rows, trees] into the tables."""
    call, width = x.call, (x.shape or (None, None))[1]
    kinds = [MODES[m] for m in sorted(set(call.node.strings("nodes_modes")) - {LEAF})]
    if width is not None and trees.feature.max(initial=0) >= width:
        raise call.mismatch(f"a tree reads feature {trees.feature.max()} of {width}")
    start = call.literal(trees.roots.astype(np.int32)[None])
    rows = x.fn("SHAPE", DType.INT32, out_type="INT32").part([0], [1])
    at = call.emit("TILE", [start, call.concatenate([rows, call.vector([1])], 0)])
    for _ in range(trees.levels):
        feature = _table(trees.feature, at, np.int32)
        seen = call.emit("GATHER", [x, feature], axis=1, batch_dims=1)
        limit = _table(trees.threshold, at, np.float32)
        turn, *others = (seen.compare(kind, limit) for kind in kinds)
        if others:
            mode = _table(trees.mode, at, np.int32)
            for i, other in enumerate(others, 1):
                turn = call.select(mode.equals(i), other, turn)
        if trees.missing.any():
            lost = seen.compare("NOT_EQUAL", seen)
            follows = _table(trees.missing, at, np.int32).compare("NOT_EQUAL", 0)
            both = call.emit("LOGICAL_AND", [lost, follows])
            turn = call.emit("LOGICAL_OR", [turn, both])
        yes, no = (_table(t, at, np.int32) for t in (trees.true, trees.false))
        at = call.select(turn, yes, no)
    return at


def _features(call: Call) -> Tensor:
    """The input as a matrix of floats."""
    x = call.cast_value(call.tensor(0), FLOAT)
    operand = call.get(x)
    if x.rank == 1:
        return operand.expand(0)
    if x.rank != 2:
        raise call.mismatch(f"features of shape {x.shape}")
    return operand


def _aggregated(table: NDArray, at: Tensor, how: str) -> Tensor:
    parts = _table(table, at, np.float32)
    kinds = {"SUM": "SUM", "AVERAGE": "MEAN", "MIN": "REDUCE_MIN", "MAX": "REDUCE_MAX"}
    if how not in kinds:
        raise at.call.node.invalid(f"the aggregation {how!r}")
    return parts.reduced(kinds[how], [1])


def _based(scores: Tensor, targets: int) -> Tensor:
    call = scores.call
    base = _array(call, "base_values", 0, 0)
    if not len(base):
        return scores
    if len(base) not in (1, targets):
        raise call.node.invalid(f"{len(base)} base values for {targets} targets")
    return scores + call.literal(base.astype(np.float32))


@operator("TreeEnsembleRegressor", domain=ML)
def tree_regressor(call: Call) -> Value:
    targets = call.node.integer("n_targets", 1)
    if not 1 <= targets <= 1 << 16:
        raise call.node.invalid(f"{targets} targets")
    trees = forest(call, "target", targets)
    at = leaves(_features(call), trees)
    scores = _aggregated(trees.weights, at, call.node.text("aggregate_function", "SUM"))
    based = _based(scores, targets)
    if targets > 1 and based is not scores:
        # If there are several targets, only targets that some leaf has a weight for get their base
        # value.
        some = _aggregated(trees.given, at, "MAX") > 0.5
        based = call.select(some, based, scores)
    return transformed(based, call.node.text("post_transform", "NONE")).value()


def transformed(scores: Tensor, how: str) -> Tensor:
    """Scores as probabilities, by the attribute `post_transform`."""
    call = scores.call
    match how:
        case "NONE":
            return scores
        case "LOGISTIC":
            return scores.fn("LOGISTIC")
        case "SOFTMAX":
            return scores.fn("SOFTMAX", beta=1.0)
        case "SOFTMAX_ZERO":
            zero = call.scalar(0, FLOAT)
            none = scores.equals(zero)
            low = call.select(none, -3.0e38, scores)
            return call.select(none, zero, low.fn("SOFTMAX", beta=1.0))
    raise call.refuse(f"the post_transform {how!r}")


def _labels(call: Call) -> NDArray:
    """Class labels: integers, or strings as objects."""
    for name in ("classlabels_int64s", "classlabels_ints"):
        if call.node.has(name):
            return np.array(call.node.integers(name), np.int64)
    if call.node.has("classlabels_strings"):
        return strings(call.node.strings("classlabels_strings"))
    raise call.node.invalid("the class labels are missing")


def _named(labels: NDArray, places: Tensor) -> Value:
    return places.call.literal(labels).gather(places, 0).value()


def _two_sided(scores: Tensor, how: str, limit: float, *, rest: bool) -> tuple[Tensor, Tensor]:
    """(label, scores of both classes) from a single score [rows, 1], which is that of the second of
    two classes. The score of the first class is the *rest* to 1, or the negative. Only the logistic
    transform applies (ONNX Runtime).
    """
    chosen = scores > limit
    if how == "LOGISTIC":
        second = scores.fn("LOGISTIC")
        first = (-scores).fn("LOGISTIC")
    else:
        second, first = scores, 1.0 - scores if rest else -scores
    both = scores.call.concatenate([first, second], 1)
    return chosen.cast(DType.INT64).reshape([-1]), both


def _answer(labels: NDArray, scores: Tensor, how: str) -> list[Value]:
    """The label with the greatest score, and all scores after the transform."""
    return [_named(labels, scores.best("ARG_MAX", 1)), transformed(scores, how).value()]


@operator("TreeEnsembleClassifier", domain=ML)
def tree_classifier(call: Call) -> list[Value]:
    """The class with the largest sum.

    Of two classes, a row that reaches no weight of the second class has a single score, that of the
    first class. This score then counts for the second class (ONNX Runtime).
    """
    labels, how = _labels(call), call.node.text("post_transform", "NONE")
    trees = forest(call, "class", len(labels))
    x = _features(call)
    if len(labels) != 2:
        scores = _aggregated(trees.weights, leaves(x, trees), "SUM")
        return _answer(labels, _based(scores, len(labels)), how)
    ids = set(call.node.integers("class_ids"))
    base = _array(call, "base_values", 0, 0)
    if len(base) > 1 or (len(base) and ids != {0}):
        raise call.refuse(f"{len(base)} base values for two classes")
    positive = len(ids) == 1 and bool((trees.weights >= 0).all())
    limit = 0.5 if positive else 0.0
    at = leaves(x, trees)
    scores = _aggregated(trees.weights, at, "SUM")
    single = scores.part([0, 0], [-1, 1])
    if len(base):
        single += float(base[0])
    one = _two_sided(single, how, limit, rest=positive)
    if ids == {0}:
        return [_named(labels, one[0]), one[1].value()]
    label = (scores.part([0, 1], [-1, 1]) > limit).cast(DType.INT64).reshape([-1])
    both = transformed(scores, how)
    some = _aggregated(trees.given[:, 1:], at, "MAX") > 0.5
    both = call.select(some, both, one[1])
    label = call.select(some.reshape([-1]), label, one[0])
    return [_named(labels, label), both.value()]


def _linear(call: Call, targets: int) -> Tensor:
    x = _features(call)
    weights = np.array(call.node.numbers("coefficients"), np.float32)
    if targets < 1 or len(weights) % targets:
        raise call.node.invalid(f"{len(weights)} coefficients for {targets} targets")
    bias = None
    if call.node.has("intercepts"):
        intercepts = call.node.numbers("intercepts")
        if len(intercepts) != targets:
            raise call.node.invalid(f"{len(intercepts)} intercepts for {targets} targets")
        bias = constant(np.array(intercepts, np.float32))
    return connected(x, constant(weights.reshape(targets, -1)), bias)


@operator("LinearRegressor", domain=ML)
def linear_regressor(call: Call) -> Value:
    how = call.node.text("post_transform", "NONE")
    return transformed(_linear(call, call.node.integer("targets", 1)), how).value()


@operator("LinearClassifier", domain=ML)
def linear_classifier(call: Call) -> list[Value]:
    labels, how = _labels(call), call.node.text("post_transform", "NONE")
    count = len(call.node.numbers("intercepts")) if call.node.has("intercepts") else len(labels)
    scores = _linear(call, count)
    if len(labels) == 2 and count == 1:
        label, both = _two_sided(scores, how, 0.0, rest=True)
        return [_named(labels, label), both.value()]
    return _answer(labels, scores, how)


@operator("Normalizer", domain=ML)
def normalizer(call: Call) -> Value:
    """Rows divided by their largest magnitude, the sum of magnitudes, or their length."""
    x = call.cast_value(call.tensor(0), FLOAT)
    last = call.vector([(x.rank or 1) - 1])
    return scaled(call.get(x), call.node.text("norm", "MAX"), last).value()


@operator("Scaler", domain=ML)
def scaler(call: Call) -> Value:
    x = call.cast_value(call.tensor(0), FLOAT)
    offset, scale = (
        constant(np.array(call.node.numbers(n, (v,)), np.float32))
        for n, v in (("offset", 0.0), ("scale", 1.0))
    )
    return call.pair("MUL", call.pair("SUB", x, offset), scale)


@operator("Binarizer", domain=ML)
def binarizer(call: Call) -> Value:
    x = call.get(call.tensor(0))
    return (x > call.node.number("threshold", 0.0)).cast(x.dtype).value()


@operator("Imputer", domain=ML)
def imputer(call: Call) -> Value:
    """Missing elements (one value, or NaN) replaced column by column."""
    x, node = call.get(call.tensor(0)), call.node
    name = "imputed_value_floats" if x.dtype.is_float else "imputed_value_int64s"
    filling = call.literal(np.array(node.numbers(name)).astype(x.dtype.numpy))
    if x.dtype.is_float:
        replaced = node.number("replaced_value_float", 0.0)
    else:
        replaced = float(node.integer("replaced_value_int64", 0))
    lost = x.compare("NOT_EQUAL", x) if math.isnan(replaced) else x.equals(replaced)
    return call.select(lost, filling, x).value()


@operator("ArrayFeatureExtractor", domain=ML)
def extractor(call: Call) -> Value:
    x = call.tensor(0)
    operand = call.get(x).expand(0) if x.rank == 1 else call.get(x)
    flat = call.get(call.tensor(1)).reshape([-1])
    return operand.gather(flat, len(operand.dims) - 1).value()


@operator("FeatureVectorizer", domain=ML)
def vectorizer(call: Call) -> Value:
    parts = [call.get(call.cast_value(call.tensor(i), FLOAT)) for i in range(len(call.inputs))]
    parts = [p.expand(0) if len(p.dims) == 1 else p for p in parts]
    return call.concatenate(parts, 1).value()


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


def _vector(items: Sequence[object]) -> NDArray:
    if items and isinstance(items[0], bytes):
        return strings(items)
    return np.array(items, np.int64 if items and type(items[0]) is int else np.float32)


@operator("LabelEncoder", domain=ML)
def label_encoder(call: Call) -> Value:
    """Each element selects the value of the key that it equals, else the default, put last."""
    x = call.tensor(0)
    keys, values, default = _keys(call)
    if len(keys) != len(values) or not len(keys):
        raise call.node.invalid(f"{len(keys)} keys and {len(values)} values")
    if x.dtype is DType.STRING and keys.dtype != object:
        raise call.node.invalid("strings are looked up among numbers")
    last = x.rank or 0
    same = call.get(x).expand(last).equals(call.literal(keys))
    first = same.cast(DType.INT32).best("ARG_MAX", last)
    found = same.reduced("REDUCE_ANY", [last])
    places = call.select(found, first, len(keys))
    return _named(np.concatenate([values, default.astype(values.dtype)]), places)


@operator("OneHotEncoder", domain=ML)
def one_hot_encoder(call: Call) -> Value:
    x = call.tensor(0)
    if x.dtype is DType.STRING:
        keys = strings(call.node.strings("cats_strings"))
    else:
        keys = np.array(call.node.integers("cats_int64s"), np.int64)
    if not call.node.integer("zeros", 1):
        raise call.refuse("categories that must be known")
    if x.dtype not in {DType.STRING, DType.INT64}:
        x = call.cast_value(x, DType.INT64)
    return call.get(x).expand(x.rank or 0).equals(call.literal(keys)).cast(FLOAT).value()


# The probabilities unchanged, one column for each class, because the IR has no maps.
operator("ZipMap", domain=ML)(lambda call: call.tensor(0))
