"""Seeded damage to TFLite files, and one trial: load it, write back what loads, and run it."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from penstock import knobs, loaders
from penstock.errors import ModelError, NotExportable
from penstock.export.tflite import write
from penstock.export.tflite.encoding import encode
from penstock.export.tflite.fields import TFLITE, Field, Kind
from penstock.ir import infer_shapes
from penstock.loaders.flatbuffer import Blob, Reader
from tests.soak.running import run
from tests.unit.loaders import files

WORDS = (
    0,
    1,
    2,
    3,
    4,
    8,
    16,
    255,
    256,
    0x7FFF,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFC,
    0xFFFFFFFF,
)
NUMBERS = (-1, 0, 1, 2, 3, 5, 127, 128, 255, 1 << 15, 1 << 20, (1 << 31) - 1, -(1 << 31))

LIMITS = {"densify_limit_mib": 16, "metadata_limit_mib": 16}

Mutation: TypeAlias = Callable[[bytes, random.Random], bytes]


def samples() -> list[bytes]:
    """The files that mutations start from where there is no corpus."""
    dense = np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 4, 0]], np.float32)
    more = (files.computed_table, files.random_draws, files.block_scaled)
    built = [make().encode() for make in (*files.SAMPLES, *more)]
    return [*built, files.sparse_matrix(dense).encode()]


def mutate(seeds: Sequence[bytes], seed: int, mutations: Sequence[Mutation] | None = None) -> bytes:
    """The damaged file number *seed*, by some of *mutations* (None: of `MUTATIONS`)."""
    rng = random.Random(seed)
    content = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(mutations or MUTATIONS)(content, rng)
    return content


def trial(content: bytes) -> str:
    """Loads *content*: the name of the defect, or "loads" and how a run ends. What loads must
    survive shape inference, and come out of writing and loading again as it was.

    Whatever else is raised is a defect of Penstock.
    """
    with knobs.override(**LIMITS):
        try:
            model = loaders.load(content)
        except ModelError as error:
            return type(error).__name__
        with contextlib.suppress(ModelError):
            infer_shapes(model)
        try:
            again = loaders.load(write(model))
        except NotExportable:
            return f"loads, NotExportable, {run(model)}"
        if again.digest != model.digest:
            raise AssertionError("the model changed on its way through the writer")
        return f"loads, {run(model)}"


def flip_bytes(content: bytes, rng: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def set_word(content: bytes, rng: random.Random) -> bytes:
    if len(content) < 8:
        return content
    data = bytearray(content)
    at = rng.randrange(0, len(data) - 4, 4)
    word = rng.choice((*WORDS, len(data), rng.randrange(len(data)), rng.getrandbits(32)))
    struct.pack_into("<I", data, at, word)
    return bytes(data)


def set_half(content: bytes, rng: random.Random) -> bytes:
    if len(content) < 8:
        return content
    data = bytearray(content)
    at = rng.randrange(0, len(data) - 2, 2)
    struct.pack_into("<H", data, at, rng.choice((0, 4, 5, 6, 8, 64, 0xFFFF, rng.getrandbits(16))))
    return bytes(data)


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def move(content: bytes, rng: random.Random) -> bytes:
    """Copies a piece of the file over another, or into it."""
    if not content:
        return content
    size = rng.choice((4, 4, 8, 16, 64))
    source, target = rng.randrange(len(content)), rng.randrange(len(content))
    piece = content[source : source + size]
    skipped = size if rng.random() < 0.8 else 0
    return content[:target] + piece + content[target + skipped :]


def restructure(content: bytes, rng: random.Random) -> bytes:
    """Changes one field of one table and encodes the file anew: damage that no FlatBuffer check
    sees.
    """
    try:
        root = _plain(Reader(memoryview(content), TFLITE))
    except ModelError:
        return content
    tables = _tables("Model", root)
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind, table = rng.choice(tables)
        field = rng.choice(TFLITE.table(kind).fields or TFLITE.table("Tensor").fields)
        if field.name in table:
            table[field.name] = _changed(field, table[field.name], rng)
    try:
        return encode(TFLITE, root)
    except (
        struct.error,
        TypeError,
        ValueError,
        KeyError,
        IndexError,
        OverflowError,
        AttributeError,
    ):
        return content


MUTATIONS: tuple[Mutation, ...] = (
    flip_bytes,
    set_word,
    set_word,
    set_half,
    truncate,
    move,
    restructure,
    restructure,
    restructure,
    restructure,
)


def _changed(field: Field, value: Any, rng: random.Random) -> Any:
    kind = field.kind
    if kind is Kind.SCALAR:
        if field.enum and rng.random() < 0.8:
            return rng.choice(list(TFLITE.numbers(field.enum).values()))
        return rng.choice(NUMBERS) if rng.random() < 0.4 else rng.randrange(12)
    if value is None or rng.random() < 0.1:
        return None
    if kind is Kind.NUMBERS and isinstance(value, bytes):
        return rng.choice((b"", value[:-1], value * 2, rng.randbytes(len(value))))
    if kind in {Kind.NUMBERS, Kind.TABLES, Kind.STRINGS} and len(value):
        items = list(value)
        at = rng.randrange(len(items))
        match rng.randrange(5):
            case 0:
                del items[at]
            case 1:
                items.insert(at, items[rng.randrange(len(items))])
            case 2:
                other = rng.randrange(len(items))
                items[at], items[other] = items[other], items[at]
            case 3:
                items[at] = items[rng.randrange(len(items))]
            case _:
                items[at] = rng.choice((*NUMBERS, *range(12))) if kind is Kind.NUMBERS else items[0]
        return items
    if kind is Kind.STRING:
        return rng.choice(("", value * 2, "\u00e4\0x", "x" * 300))
    return value


def _tables(kind: str, table: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    found = [(kind, table)]
    for field in TFLITE.table(kind).fields:
        value = table.get(field.name)
        if value is None:
            continue
        if field.kind is Kind.TABLE:
            found += _tables(field.target, value)
        elif field.kind is Kind.TABLES:
            found += [entry for item in value for entry in _tables(field.target, item)]
        elif field.kind is Kind.UNION:
            found += _tables(TFLITE.unions[field.target][table[f"{field.name}_type"]], value)
    return found


def _plain(reader: Reader) -> dict[str, Any]:
    """The root with bytes in place of `Blob`s and lists in place of arrays."""

    def plain(value: Any) -> Any:
        if isinstance(value, Blob):
            return reader.bytes_of(value)
        if isinstance(value, np.ndarray):
            return value.tolist()
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return value

    root: dict[str, Any] = plain(reader.root())
    return root
