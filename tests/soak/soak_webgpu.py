"""Every network of the corpus on the device `webgpu-software`:

    python -m tests.soak.soak_webgpu [--only ID,...] [--cases N] [--most-macs N]

Each is run whole on its recorded cases and judged as `exact`, or is refused with a reason. Prints a
line for each and the counts; exit code 1 when an output is off, 2 without the corpus or the device.
`tests.soak.soak_vectors --only webgpu-software` has the operations.
"""

from __future__ import annotations

import argparse
import sys
import time

from penstock.drivers.webgpu.installation import SOFTWARE, missing
from penstock.runtime.isolation import close_hosts
from tests.conftest import CORPUS, NO_CORPUS
from tests.golden import webgpu_networks


def main() -> int:
    parser = argparse.ArgumentParser(description="The networks of the corpus on webgpu-software.")
    parser.add_argument("--only", default="", help="networks, separated by commas")
    parser.add_argument("--cases", type=int, default=1, help="of each group of cases")
    parser.add_argument("--most-macs", type=int, default=None)
    given = parser.parse_args()
    if CORPUS is None or (reason := missing(SOFTWARE)) is not None:
        print(NO_CORPUS if CORPUS is None else reason)
        return 2
    only = frozenset(filter(None, given.only.split(",")))
    whole, refused, wrong = list[str](), list[str](), list[str]()
    for entry in webgpu_networks.networks():
        macs = entry.get("macs_at_golden_shape") or entry["macs"] or 0
        too_large = given.most_macs is not None and macs > given.most_macs
        if (only and entry["id"] not in only) or too_large:
            continue
        began = time.monotonic()
        try:
            found = webgpu_networks.refusal(entry, cases=given.cases)
            pile, said = (whole, "whole and right") if found is None else (refused, found)
        except AssertionError as error:
            pile, said = wrong, f"WRONG: {error}"
        pile.append(entry["id"])
        text = " ".join(said.split())[:300]
        print(f"{entry['id']} ({macs / 1e6:.1f} M products): {text}", end=" ")
        print(f"in {time.monotonic() - began:.1f} s", flush=True)
    close_hosts()
    print(f"{len(whole)} whole and right, {len(refused)} refused, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
