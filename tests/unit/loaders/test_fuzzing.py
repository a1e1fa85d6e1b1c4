"""A short, seeded run of the mutation fuzzing; `python -m tests.soak.soak_loader` runs it at
length.
"""

from __future__ import annotations

from collections import Counter

from penstock.loaders import load
from tests.soak.mutation import mutate, samples, trial
from tests.soak.soak_loader import fuzz

COUNT = 2000


def test_damaged_files_load_or_are_refused_by_name() -> None:
    seeds = samples()
    outcomes = Counter(trial(mutate(seeds, seed)) for seed in range(COUNT))
    assert outcomes.total() == COUNT
    assert len(outcomes) > 10
    loaded = sum(n for outcome, n in outcomes.items() if outcome.startswith("loads"))
    assert 0.05 * COUNT < loaded < 0.8 * COUNT


def test_mutations_are_reproducible() -> None:
    seeds = samples()
    assert [mutate(seeds, n) for n in range(50)] == [mutate(seeds, n) for n in range(50)]


def test_the_samples_load() -> None:
    for content in samples():
        assert load(content).operations


def test_the_soak_counts_every_file() -> None:
    figures, lost = fuzz(samples(), first=0, count=600, jobs=1)
    assert figures.outcomes.total() == 600
    assert not figures.failures
    assert not lost
