"""`python -m penstock.ipc.host NAME VALUE`: the driver of that entry point, served on the socket that was inherited.

Descriptor 3 is a Unix socket to the first client, and 4 one that listens for others, unless the first argument is `--alone`; 1
and 2 are a file that clients read. Whoever starts the process says what to import; clients say nothing but what the wire has.

`python -m penstock.ipc.host --service PATH [--users UID,UID] NAME VALUE` is a service that an administrator runs as a
user of its own: it listens at PATH, in a directory that only that user or root can write, for clients of other users,
whose settings name it (the knob `services`). Its registry and its key are then out of its clients' reach.
"""

from __future__ import annotations

import os
import sys

FIRST = 3
LISTENER = 4


def main() -> None:
    """Serves: until the last client is gone, or as a service until it is ended."""
    import faulthandler

    faulthandler.enable()
    arguments = sys.argv[1:]
    is_service = arguments[:1] == ["--service"]
    users, first, listener = None, None, None
    if is_service:
        from penstock.ipc.host.service import listen, prepare

        path, arguments = arguments[1], arguments[2:]
        if arguments[:1] == ["--users"]:
            users = frozenset(map(int, arguments[1].split(",")))
            arguments = arguments[2:]
        prepare()
        listener = listen(path)
    else:
        first = FIRST
        if arguments[:1] == ["--alone"]:
            arguments = arguments[1:]
        else:
            listener = LISTENER
        os.closerange((listener or first) + 1, 1 << 16)
    name, value = arguments
    from penstock.ipc import sandbox

    # Before anything starts a thread, as NumPy does: none is left out.
    report = sandbox.apply(sandbox.host_policy())
    from penstock.ipc.host.process import Host

    Host(name, value, listener, first, report.lines(), service=is_service, users=users).run()


if __name__ == "__main__":
    main()
