"""Declarations of accuracy on inputs that nobody recorded: 150 crops of pictures, or blends of
recorded inputs, of every 8-bit network of the corpus, operation by operation and as a whole.

    python -m tests.soak.soak_crops [--count N] [--only ID,...] [--most-macs N]

Prints every result that is farther off than its declared class allows. tests/golden/test_crops.py
runs a few.
"""

from __future__ import annotations

import argparse
import sys
import time

from penstock.runtime.discovery import manager
from tests.golden.cases import entries
from tests.golden.crop_rules import check_operations_on_crops, check_whole_on_crops
from tests.golden.engine_grid import ENGINES

COUNT = 150
MOST_MACS = 2_000_000_000
"""Multiply-accumulates of the largest network that LiteRT's reference kernels compute in
seconds.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Soak of declared accuracy.")
    parser.add_argument("--count", type=int, default=COUNT, help="inputs of each network")
    parser.add_argument("--only", default="", help="files, by id, separated by commas")
    parser.add_argument("--most-macs", type=float, default=MOST_MACS)
    arguments = parser.parse_args()
    if missing := [engine for engine in ENGINES if manager.by_name(engine) is None]:
        print(f"not usable here: {', '.join(missing)}")
        return 1
    only = set(filter(None, arguments.only.split(",")))
    chosen = [
        entry
        for entry in entries("network")
        if entry["dtype_scheme"] in {"int8", "uint8"} and (not only or entry["id"] in only)
    ]
    departures, compared = 0, 0
    for entry in chosen:
        if (entry["macs"] or 0) > arguments.most_macs:
            print(f"{entry['id']}: left out, {entry['macs']:,} multiply-accumulates", flush=True)
            continue
        for check in (check_whole_on_crops, check_operations_on_crops):
            began = time.monotonic()
            found = check(entry, arguments.count)
            print(
                f"{entry['id']}, {check.__name__}: {found.compared} compared, "
                f"{len(found.departures)} too far off, {time.monotonic() - began:.0f} s",
                *found.departures,
                sep="\n    ",
                flush=True,
            )
            compared += found.compared
            departures += len(found.departures)
    print(f"{compared} results compared, {departures} too far off")
    return 1 if departures or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
