"""Inputs that nobody recorded: crops of the corpus's pictures, and other recorded inputs, moved and
mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import numpy as np
from PIL import Image

from penstock.ir import NDArray
from tests.conftest import CORPUS, NO_CORPUS
from tests.golden.arrays import golden
from tests.golden.cases import Entry

LEAST_SHARE: Final = 0.3
"""Of a picture's width and height that a crop has."""

BRIGHTER: Final = (0.6, 1.4)
"""Times what pixels were."""

SCHEMES: Final[dict[str, Callable[[NDArray], NDArray]]] = {
    "raw": lambda x: x,
    "f255": lambda x: x,
    "unit": lambda x: x / 255,
    "pm1": lambda x: x / 127.5 - 1,
    "bgr255": lambda x: x[..., ::-1],
}
"""Pixels from 0 to 255 as a network takes them, by the names of the manifest."""


@cache
def pictures() -> tuple[Image.Image, ...]:
    """The corpus's pictures, in colour; one that marks segments is none."""
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    found = sorted((CORPUS / "models" / "images").glob("*.[bj][mp][pg]"))
    return tuple(
        Image.open(path).convert("RGB") for path in found if not path.stem.endswith("_mask")
    )


def is_of_pictures(entry: Entry) -> bool:
    """Whether a network's only input is a picture."""
    cases = entry["golden"]["cases"]
    return len(entry["inputs"]) == 1 and any("preprocess" in case for case in cases)


def drawn(entry: Entry, number: int) -> list[NDArray]:
    """Input *number* of a network, the same at each call: a crop of a picture; for a network that
    takes none, a blend of two of its recorded cases, each moved along its last axis but one.
    """
    rng = np.random.default_rng(number)
    if is_of_pictures(entry):
        return [_crop(entry, rng)]
    return _blend(entry, rng)


def inputs_of(entry: Entry, count: int) -> Iterator[list[NDArray]]:
    """The first *count* of `drawn`."""
    return (drawn(entry, number) for number in range(count))


def _crop(entry: Entry, rng: np.random.Generator) -> NDArray:
    told = entry["inputs"][0]
    shape = [d if d > 0 else 1 for d in _shape(entry)]
    every = pictures()
    picture = every[int(rng.integers(len(every)))]
    share = rng.uniform(LEAST_SHARE, 1, 2)
    width, height = (max(1, int(d * s)) for d, s in zip(picture.size, share, strict=True))
    left, top = (
        int(rng.integers(d - s + 1)) for d, s in zip(picture.size, (width, height), strict=True)
    )
    rows, columns = shape[1:3]
    part = picture.crop((left, top, left + width, top + height)).resize((columns, rows))
    pixels = np.asarray(part, np.float64)
    if rng.integers(2):
        pixels = pixels[:, ::-1]
    pixels = np.rint(np.clip(pixels * rng.uniform(*BRIGHTER), 0, 255))
    scheme = next(c["preprocess"] for c in entry["golden"]["cases"] if "preprocess" in c)
    name = scheme.removeprefix("q_")
    if name.startswith("gray_"):
        name, pixels = name.removeprefix("gray_"), np.rint(pixels.mean(-1, keepdims=True))
    values = SCHEMES[name](pixels).reshape(shape)
    dtype = np.dtype(told["dtype"].lower())
    if scheme.startswith("q_"):
        info, quant = np.iinfo(dtype), told["quant"]
        values = np.clip(np.rint(values / quant["scale"] + quant["zero_point"]), info.min, info.max)
    return np.ascontiguousarray(values.astype(dtype))


def _shape(entry: Entry) -> list[int]:
    resized: list[int] | None = entry["golden"]["cases"][0].get("resize_inputs", {}).get("0")
    return resized or entry["inputs"][0]["shape"]


def _blend(entry: Entry, rng: np.random.Generator) -> list[NDArray]:
    if CORPUS is None:
        raise FileNotFoundError(NO_CORPUS)
    arrays = golden(CORPUS / "models" / entry["golden"]["file"])
    cases: list[dict[str, Any]] = entry["golden"]["cases"]
    first, *_ = alike = [
        c for c in cases if c.get("resize_inputs") == cases[0].get("resize_inputs")
    ]
    one, other = (alike[int(k)] for k in rng.integers(len(alike), size=2))
    share, found = rng.uniform(), []
    for name in first["inputs"]:
        given = [arrays[f"{case['id']}/in/{name}"] for case in (one, other)]
        axis = max(0, given[0].ndim - 2)
        a, b = (
            np.roll(x, int(rng.integers(max(1, x.shape[axis]))), axis).astype(np.float64)
            for x in given
        )
        mixed = a * share + b * (1 - share)
        dtype = given[0].dtype
        found.append((mixed if dtype.kind == "f" else np.rint(mixed)).astype(dtype))
    return found
