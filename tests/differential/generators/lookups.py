"""Embeddings, hashing, words, and the custom operators that LiteRT's resolver has."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from flatbuffers import flexbuffers

from penstock.ir import DType, NDArray
from penstock.ir.types import PACKED
from tests.differential.draw import Draw
from tests.differential.registry import SWEPT, cases

BYTES: Final = tuple(d for d in SWEPT if d not in PACKED)
WORDS: Final = (b"the", b"quick brown", b"fox  jumps over", b"", b"a lazy dog sleeps all day")


def options(**values: Any) -> bytes:
    return bytes(flexbuffers.Dumps(values))


def sorted_keys(draw: Draw, count: int) -> NDArray:
    """Ascending keys, none twice."""
    return np.sort(draw.rng.choice(20, count, replace=False)).astype(np.int32)


def _rows(params: DType, made: DType) -> bool:
    """Rows of less than a byte an element are real values, or bytes in LiteRT's eyes."""
    if params is made:
        return params not in PACKED
    return made is DType.FLOAT32 and params in {DType.INT8, DType.UINT8, DType.INT4, DType.INT2}


@cases("EMBEDDING_LOOKUP", slots=2, only=_rows)
def embedding(draw: Draw, kind: str) -> None:
    params, made = draw.type(0), draw.type(1)
    rows = draw.integer(1, 6)
    whole_bytes = (4,) if params in PACKED else ()
    shape = (rows, *draw.shape(1, 2, 4), *whole_bytes)
    ids = draw.rng.integers(0, rows, draw.integer(1, 4)).astype(np.int32)
    scaled = params is not made or draw.chance(0.3)
    quantization = draw.quantization(params, zero_point=0, scaled=scaled and params.is_integer)
    table = draw.value(params, shape, quantization, constant=draw.chance(0.9))
    keys = draw.value(DType.INT32, ids.shape, array=ids)
    kept = quantization if params is made else None
    draw.operation(kind, [keys, table], [draw.output(made, kept)])


@cases("EMBEDDING_LOOKUP_SPARSE", choices=[[DType.FLOAT32]])
def sparse_embedding(draw: Draw, kind: str) -> None:
    groups, count, rows = draw.integer(1, 3), draw.integer(1, 6), draw.integer(1, 5)
    places = np.sort(draw.rng.integers(0, groups, count))
    indexes = np.stack([places, np.arange(count)], axis=1).astype(np.int32)
    ids = draw.rng.integers(0, rows, count).astype(np.int32)
    dense = np.array([groups, count], np.int32)
    weights = draw.array(DType.FLOAT32, (count,), 0.1, 2.0)
    params = draw.value(DType.FLOAT32, (rows, *draw.shape(1, 2, 3)))
    given = [
        draw.value(DType.INT32, ids.shape, array=ids),
        draw.value(DType.INT32, indexes.shape, array=indexes),
        draw.parameter(dense),
        draw.value(DType.FLOAT32, weights.shape, array=weights),
    ]
    combiner = draw.pick(("SUM", "MEAN", "SQRTN"))
    draw.operation(kind, [*given, params], [draw.output(DType.FLOAT32)], combiner=combiner)


@cases("HASHTABLE_LOOKUP", choices=[BYTES])
def lookup(draw: Draw, kind: str) -> None:
    count = draw.integer(1, 5)
    keys = sorted_keys(draw, count)
    queries = np.array(
        [draw.pick(keys.tolist()) if draw.chance(0.6) else draw.integer(0, 20) for _ in range(3)],
        np.int32,
    )
    dtype = draw.type(0)
    shape = (count,) if dtype is DType.STRING else (count, *draw.shape(0, 2, 3))
    values = draw.value(dtype, shape, low=1)
    given = [draw.value(DType.INT32, a.shape, array=a) for a in (queries, keys)]
    draw.operation(kind, [*given, values], [draw.output(dtype), draw.output(DType.UINT8)])


@cases("LSH_PROJECTION", choices=[BYTES])
def projection(draw: Draw, kind: str) -> None:
    functions, bits, rows = draw.integer(1, 4), draw.integer(1, 6), draw.integer(1, 5)
    seeds = draw.value(DType.FLOAT32, (functions, bits))
    data = draw.value(draw.type(0), (rows, *draw.shape(0, 1, 3)))
    weight = draw.value(DType.FLOAT32, (rows,), low=0.1) if draw.chance(0.5) else None
    given = [seeds, data] if weight is None else [seeds, data, weight]
    draw.operation(kind, given, [draw.output(DType.INT32)], type=draw.pick(("SPARSE", "DENSE")))


@cases("SKIP_GRAM", choices=[[DType.STRING]])
def words(draw: Draw, kind: str) -> None:
    text = np.array([draw.pick(WORDS)], object)
    size = draw.integer(1, 3)
    draw.operation(
        kind,
        [draw.value(DType.STRING, (1,), array=text)],
        [draw.output(DType.STRING)],
        ngram_size=size,
        max_skip_size=draw.integer(0, 3),
        include_all_ngrams=draw.chance(0.5),
    )


@cases("CUSTOM:AudioSpectrogram", choices=[[DType.FLOAT32]])
def spectrogram(draw: Draw, kind: str) -> None:
    size = draw.integer(2, 24)
    samples = draw.value(DType.FLOAT32, (draw.integer(size, 60), draw.integer(1, 2)))
    settings = options(
        window_size=size, stride=draw.integer(1, 9), magnitude_squared=draw.chance(0.5)
    )
    draw.operation(kind, [samples], [draw.output(DType.FLOAT32)], custom_options=settings)


@cases("CUSTOM:Mfcc", choices=[[DType.FLOAT32]])
def cepstrum(draw: Draw, kind: str) -> None:
    shape = (draw.integer(1, 2), draw.integer(1, 3), draw.pick((65, 129)))
    spectrum = draw.value(DType.FLOAT32, shape, low=0.0, high=4.0)
    settings = options(
        upper_frequency_limit=4000.0,
        lower_frequency_limit=20.0,
        filterbank_channel_count=draw.integer(4, 30),
        dct_coefficient_count=draw.integer(1, 4),
    )
    rate = draw.value(DType.INT32, (), array=np.array(16000, np.int32))
    draw.operation(kind, [spectrum, rate], [draw.output(DType.FLOAT32)], custom_options=settings)


@cases("CUSTOM:NumericVerify", choices=[SWEPT])
def verification(draw: Draw, kind: str) -> None:
    dtype, shape = draw.type(0), draw.shape(1)
    stored = draw.value(dtype, shape, draw.quantization(dtype, scaled=dtype.is_integer))
    real = draw.value(DType.FLOAT32, shape)
    settings = options(tolerance=5.0, log_if_failed=False)
    draw.operation(kind, [stored, real], [draw.output(DType.FLOAT32)], custom_options=settings)


@cases("CUSTOM:aeq.hadamard_rotation", choices=[[DType.FLOAT32]])
def rotation(draw: Draw, kind: str) -> None:
    size = draw.pick((2, 4, 8))
    shape = (*draw.shape(1, 2, 3), size * draw.integer(1, 2))
    x = draw.value(DType.FLOAT32, shape, static=True)
    settings = options(hadamard_size=size)
    made = draw.output(DType.FLOAT32, None, shape)
    draw.operation(kind, [x], [made], custom_options=settings)


@cases("CUSTOM:odml.scaled_dot_product_attention", choices=[[DType.FLOAT32]])
def attention(draw: Draw, kind: str) -> None:
    heads, size = draw.integer(1, 3), draw.integer(1, 4)
    queries, keys = draw.integer(1, 4), draw.integer(1, 5)
    shapes = (1, queries, heads, size), (1, keys, heads, size), (1, keys, heads, size)
    values = [draw.value(DType.FLOAT32, s, constant=False, static=True) for s in shapes]
    mask = draw.value(DType.FLOAT32, (1, 1, queries, keys), constant=False, static=True)
    settings = options(scale=draw.real(0.1, 1.0))
    draw.operation(kind, [*values, mask], [draw.output(DType.FLOAT32)], custom_options=settings)


@cases("MULTINOMIAL", choices=[[DType.FLOAT32], [DType.INT32, DType.INT64]])
def samples(draw: Draw, kind: str) -> None:
    logits = draw.value(DType.FLOAT32, (draw.integer(1, 3), draw.integer(1, 5)))
    count = draw.parameter(np.array(draw.integer(0, 6), np.int32))
    draw.operation(
        kind,
        [logits, count],
        [draw.output(draw.type(1))],
        seed=draw.integer(1, 9),
        seed2=draw.integer(0, 9),
    )


@cases(
    "RANDOM_UNIFORM",
    "RANDOM_STANDARD_NORMAL",
    choices=[[DType.FLOAT32], [DType.INT32, DType.INT64]],
)
def noise(draw: Draw, kind: str) -> None:
    shape = draw.parameter(np.array(draw.shape(1, 3), draw.type(1).numpy))
    draw.operation(
        kind,
        [shape],
        [draw.output(draw.type(0))],
        seed=draw.integer(1, 9),
        seed2=draw.integer(0, 9),
    )
