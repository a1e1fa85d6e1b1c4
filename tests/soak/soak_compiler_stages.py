"""Every model of the corpus that the compiler takes, after each of its passes, for two unlike
targets: sound programs and plans, which compute what the reference device does.

    python -m tests.soak.soak_compiler_stages [--only ID,...] [--most-macs N] [--seed N]

Prints every departure. tests/unit/compiler/test_corpus.py runs the small models.
"""

from __future__ import annotations

import argparse
import sys
import time

from penstock.compiler.checks import BrokenProgram
from tests.support_compiler import check_stages, corpus_entries, departures, model_of


def main() -> int:
    parser = argparse.ArgumentParser(description="Soak of the compiler's passes.")
    parser.add_argument("--only", default="", help="models, by id, separated by commas")
    parser.add_argument("--most-macs", type=float, default=1e12)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    only = set(filter(None, arguments.only.split(",")))
    compared, refused, wrong = 0, 0, 0
    for entry in corpus_entries():
        if (only and entry["id"] not in only) or (entry["macs"] or 0) > arguments.most_macs:
            continue
        model = model_of(entry)
        if model is None:
            refused += 1
            continue
        began = time.monotonic()
        try:
            check_stages(model)
            found = departures(model, arguments.seed)
        except BrokenProgram as broken:
            found = [str(broken)]
        compared, wrong = compared + 1, wrong + bool(found)
        took = time.monotonic() - began
        print(f"{entry['id']}: {took:.1f} s", *found, sep="\n    ", flush=True)
    print(f"{compared} models compared, {wrong} wrong; the compiler takes {refused} others in part")
    return 1 if wrong or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
