"""`python -m penstock.ipc.host NAME VALUE`: the driver of that entry point, served on the socket that was inherited.

Descriptor 3 is a Unix socket that listens; 1 and 2 are a file that clients read. Whoever starts the process says what to
import; clients say nothing but what the wire has.
"""

from __future__ import annotations

import os
import sys

LISTENER = 3


def main() -> None:
    """Serves until the last client is gone."""
    os.closerange(LISTENER + 1, 1 << 16)
    import faulthandler

    faulthandler.enable()
    from penstock.ipc import sandbox

    # Before anything starts a thread, as NumPy does: none is left out.
    report = sandbox.apply(sandbox.host_policy())
    from penstock.ipc.host.process import Host

    name, value = sys.argv[1:3]
    Host(name, value, LISTENER, report.lines()).run()


if __name__ == "__main__":
    main()
