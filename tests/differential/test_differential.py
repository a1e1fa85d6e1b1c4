"""Random models, run by LiteRT and by the reference driver: a short seeded share of the soak."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")

from tests.differential.graphs import draw_graph
from tests.differential.judge import Judge
from tests.differential.registry import draw_single, every_case
from tests.differential.trial import Outcome, examine

MODELS = 3
"""Of each operation; scripts/soak draws many more."""

GRAPHS = 120
"""Drawn together: twenty of them may by chance be refused by both sides more often than not."""


@pytest.mark.parametrize("key", sorted(every_case()))
def test_single_operations(key: str, judge: Judge) -> None:
    outcomes: Counter[Outcome] = Counter()
    for seed in range(MODELS):
        drawn = draw_single(key, [seed])
        verdict = examine(drawn, judge)
        assert not verdict.failed, (
            f"seed {seed}: {verdict.outcome.value}\n{drawn.listing}\n{verdict.reason}"
        )
        outcomes[verdict.outcome] += 1
    assert outcomes[Outcome.AGREE], outcomes


def test_small_graphs(judge: Judge) -> None:
    outcomes: Counter[Outcome] = Counter()
    for seed in range(GRAPHS):
        drawn = draw_graph([seed])
        verdict = examine(drawn, judge)
        assert not verdict.failed, (
            f"seed {seed}: {verdict.outcome.value}\n{drawn.listing}\n{verdict.reason}"
        )
        outcomes[verdict.outcome] += 1
    assert outcomes[Outcome.AGREE] > 2 * GRAPHS // 3, outcomes
