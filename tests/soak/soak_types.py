"""Every assignment of element types to the operands of every operation, as far as LiteRT might run
it:

    python -m tests.soak.soak_types [KEY ...] [--draws N]

Exit code 1 when Penstock refuses what LiteRT runs, or computes otherwise than the rule of
comparison allows.
"""

from __future__ import annotations

import sys

from tests.differential.sweep import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["--draws", "4"]))
