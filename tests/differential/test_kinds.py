"""The generators draw models of every unusual kind, and LiteRT and Penstock agree on them: a short
seeded share of the soak.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")

from tests.differential.judge import Judge
from tests.differential.kinds import GENERAL, GIVEN, Kind
from tests.differential.registry import draw_single, every_case
from tests.differential.trial import Outcome, examine
from tests.soak.soak_differential import draw

DRAWN: Final = 3000
"""Models of the soak that are counted by kind: its first ones, which take seconds to draw."""

LEAST: Final[dict[Kind, int]] = dict.fromkeys(Kind, 5) | dict.fromkeys(GENERAL, 20)
"""How many of them at least are of each kind."""

MODELS: Final = 40
"""Judged in each kind that any operation may have; of operations in turn."""

OF_ONE: Final = 25
"""Judged of each operation that has kinds of its own, in each of these."""


@pytest.mark.slow
def test_the_soak_draws_operations_and_graphs_of_every_kind() -> None:
    counts: Counter[tuple[str, Kind]] = Counter()
    for seed in range(DRAWN):
        size, _, drawn = draw(seed)
        counts.update((size, kind) for kind in drawn.kinds)
    rare = {k: n for k in Kind if (n := counts["single", k] + counts["graph", k]) < LEAST[k]}
    assert rare == {}, counts
    assert all(counts["graph", kind] > 3 for kind in GIVEN), counts


@pytest.mark.parametrize("kind", GENERAL)
def test_operations_of_a_general_kind(kind: Kind, judge: Judge) -> None:
    keys = sorted(every_case())
    chosen = np.random.default_rng(0).permutation(len(keys))[:MODELS]
    check(judge, [(keys[i], 0) for i in chosen], kind)


OWN: Final = [(key, kind) for key, case in sorted(every_case().items()) for kind in case.own]


@pytest.mark.parametrize(("key", "kind"), OWN)
def test_operations_of_a_kind_of_their_own(key: str, kind: Kind, judge: Judge) -> None:
    check(judge, [(key, seed) for seed in range(OF_ONE)], kind)


def check(judge: Judge, models: list[tuple[str, int]], kind: Kind) -> None:
    """Asserts that none of the models is refused or computed otherwise than by LiteRT, and that
    some are of *kind*.
    """
    outcomes: Counter[Outcome] = Counter()
    for key, seed in models:
        drawn = draw_single(key, [seed], kind=kind)
        verdict = examine(drawn, judge)
        assert not verdict.failed, (
            f"{key} {seed}: {verdict.outcome.value}\n{drawn.listing}\n{verdict.reason}"
        )
        outcomes[verdict.outcome] += kind in drawn.kinds
    assert outcomes.total(), f"no model is of this kind: {kind.value}"
