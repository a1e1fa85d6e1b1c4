"""Every model of the corpus that the compiler takes, and random networks, after each of its passes,
for two unlike targets: sound programs and plans, which compute what the reference device does.

    python -m tests.soak.soak_compiler_stages [--only ID,...] [--most-macs N] [--seed N]
        [--random N]

Prints every departure. tests/unit/compiler/test_corpus.py runs the small models.
"""

from __future__ import annotations

import argparse
import sys
import time

from penstock.compiler.checks import BrokenProgram
from penstock.ir import Model
from tests.support_compiler import check_stages, corpus_entries, departures, model_of
from tests.unit.compiler.random_networks import Network


def main() -> int:
    parser = argparse.ArgumentParser(description="Soak of the compiler's passes.")
    parser.add_argument("--only", default="", help="models, by id, separated by commas")
    parser.add_argument("--most-macs", type=float, default=1e12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", type=int, default=2000, help="random networks")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.random)
    wrong = sum(_print(f"random network {seed}", Network(seed).model(), seed) for seed in seeds)
    print(f"{len(seeds)} random networks, {wrong} wrong", flush=True)
    only = set(filter(None, arguments.only.split(",")))
    compared, refused = 0, 0
    for entry in corpus_entries():
        if (only and entry["id"] not in only) or (entry["macs"] or 0) > arguments.most_macs:
            continue
        model = model_of(entry)
        if model is None:
            refused += 1
            continue
        began = time.monotonic()
        compared += 1
        wrong += _print(entry["id"], model, arguments.seed)
        print(f"{entry['id']}: {time.monotonic() - began:.1f} s", flush=True)
    print(f"{compared} models compared; the compiler takes {refused} others in part; {wrong} wrong")
    return 1 if wrong or not compared else 0


def _print(name: str, model: Model, seed: int) -> bool:
    """Checks *model* and prints what is wrong; returns whether anything is."""
    try:
        check_stages(model)
        found = departures(model, seed)
    except BrokenProgram as broken:
        found = [str(broken)]
    if found:
        print(name, *found, sep="\n    ", flush=True)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
