"""The generators by operation: `@cases("ADD", slots=1)`.

A generator adds one operation to a `Draw`. Its *slots* are the element types it asks for with
`Draw.type`; which assignments LiteRT runs is data, found by `python -m tests.differential.sweep
--write`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from penstock.ir import DType
from tests.differential.draw import Draw, Drawn
from tests.differential.kinds import GENERAL, Kind

Generator: TypeAlias = Callable[[Draw, str], None]
"""Adds one operation, of the type that is its second argument."""

ACCEPTED: Final = Path(__file__).parent / "accepted"
"""A file of accepted types for each family of generators."""

FAMILIES: Final = Path(__file__).parent / "generators"

ATTEMPTS: Final = 20
"""How often a generator may draw what cannot be."""

SWEPT: Final = tuple(d for d in DType if d not in {DType.RESOURCE, DType.VARIANT})


@dataclass(frozen=True)
class Case:
    """A generator of one operation. *choices* are the types that a sweep tries in each slot, *own*
    the unusual kinds that the generator itself draws.
    """

    key: str
    generate: Generator
    choices: tuple[tuple[DType, ...], ...]
    only: Callable[..., bool] | None = None
    own: tuple[Kind, ...] = ()

    def kind(self, rng: np.random.Generator) -> Kind | None:
        """The kind of a model to draw: none half of the time, else one that fits any operation."""
        return None if rng.random() < 0.5 else GENERAL[int(rng.integers(len(GENERAL)))]

    @property
    def family(self) -> str:
        """The module that the generator stands in."""
        return self.generate.__module__.rpartition(".")[2]

    def assignments(self) -> Iterator[tuple[DType, ...]]:
        """The assignments of types that a sweep tries."""
        for types in itertools.product(*self.choices):
            if self.only is None or self.only(*types):
                yield types


CASES: Final[dict[str, Case]] = {}


def cases(
    *keys: str,
    slots: int = 0,
    choices: Sequence[Sequence[DType]] | None = None,
    only: Callable[..., bool] | None = None,
    own: Sequence[Kind] = (),
) -> Callable[[Generator], Generator]:
    """Registers the decorated generator for *keys*, with *slots* of any type or *choices* a slot.

    *only* says of an assignment of types whether it means anything: many kernels of LiteRT look at
    one operand's type and read the bytes of the others as if they had it. *own* are the unusual
    kinds that the generator draws.
    """

    def register(generate: Generator) -> Generator:
        for key in keys:
            if key in CASES:
                raise ValueError(f"{key} has a generator already")
            tried = [SWEPT] * slots if choices is None else choices
            CASES[key] = Case(key, generate, tuple(tuple(c) for c in tried), only, tuple(own))
        return generate

    return register


def every_case() -> dict[str, Case]:
    """All generators, those of every family imported."""
    for path in sorted(FAMILIES.glob("*.py")):
        import_module(f"tests.differential.generators.{path.stem}")
    return CASES


def accepted_lines(family: str) -> dict[str, str]:
    """What is on record for a family of generators: assignments by operation, as text."""
    path = ACCEPTED / f"{family}.json"
    lines: dict[str, str] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return lines


@cache
def accepted(family: str) -> dict[str, list[tuple[DType, ...]]]:
    """The assignments of types to slots that LiteRT runs, by operation of a family."""
    return {
        key: [tuple(DType(name) for name in types.split()) for types in line.split(", ") if types]
        for key, line in accepted_lines(family).items()
    }


def draw_single(
    key: str, seed: Sequence[int], types: tuple[DType, ...] | None = None, kind: Kind | None = None
) -> Drawn:
    """A model of one operation *key*: of *types*, or of an assignment that LiteRT runs, and of
    *kind* where that is given.
    """
    case, rng = every_case()[key], np.random.default_rng(seed)
    known = [types] if types else accepted(case.family).get(key) or [()]
    reason: Exception | None = None
    for _ in range(ATTEMPTS):
        draw = Draw(rng, kind=kind)
        draw.types = draw.pick(known)
        try:
            case.generate(draw, key)
            return draw.finish()
        except (
            ValueError,
            IndexError,
            OverflowError,
        ) as error:  # of no elements, none can be picked
            reason = error
    raise ValueError(f"{key} draws no model: {reason}")


def draw_unusual(key: str, seed: Sequence[int]) -> Drawn:
    """A model of one operation *key*, half of the time of an unusual kind."""
    return draw_single(key, seed, kind=every_case()[key].kind(np.random.default_rng([*seed, 1])))
