"""A broker that is asked nonsense by its driver: whole, cut and altered questions, and any bytes.

    python -m tests.soak.soak_keeping [--count N] [--seed N]

It answers, or hangs up, and takes no more memory than before. tests/unit/ipc/test_sealing.py draws
a few.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import socket
import tempfile
import threading
import time

import msgspec

from penstock import knobs
from penstock.ipc.host import sealing
from penstock.ipc.host.sealing import Sealer

COUNT = 200_000
ALLOWED_KIB = 32_768
KINDS = ("state", "begin", "publish", "find", "remove", "rows", "clear", "sign", "is_sealed")
ERRORS = {"", "Unreadable", "WireError", "SealBroken", "RolledBack", "OtherVersion"}


def question(draw: random.Random) -> bytes:
    """A question, most often with something wrong."""
    right = {"token": 32, "entry": 16, "header": 256}
    asked: dict[str, object] = {
        "ask": draw.choice(KINDS),
        "driver": draw.choice(["d", "e", "x" * 2000]),
        "version": str(draw.randrange(80)),
    }
    for name, length in right.items():
        if draw.random() < 0.5:
            asked[name] = draw.randbytes(length if draw.random() < 0.7 else draw.randrange(300))
    for name in ("models", "datas"):
        if draw.random() < 0.3:
            asked[name] = [
                (draw.randbytes(32), draw.randrange(1 << 63)) for _ in range(draw.randrange(40))
            ]
    if draw.random() < 0.3:
        asked["made"] = draw.random() < 0.5
    content = bytearray(msgspec.msgpack.encode(asked))
    if draw.random() < 0.3:
        for _ in range(draw.randrange(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
    if draw.random() < 0.1:
        del content[draw.randrange(len(content)) :]
    return bytes(content)


def main() -> int:
    parser = argparse.ArgumentParser(description="Soak of a broker's seals.")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    begun, asked, hangs, wrong = time.monotonic(), 0, 0, 0
    before = 0
    with tempfile.TemporaryDirectory() as state, knobs.override(state_dir=state, key_store="file"):
        while asked < arguments.count:
            theirs, ours = socket.socketpair()
            # The thread has the knobs of a process's environment, not of this block.
            os.environ["PENSTOCK_STATE_DIR"], os.environ["PENSTOCK_KEY_STORE"] = state, "file"
            sealer = threading.Thread(target=Sealer(theirs, "soak:d=d").serve, daemon=True)
            sealer.start()
            ours.settimeout(30)
            try:
                while asked < arguments.count:
                    asked += 1
                    content = question(draw)
                    ours.sendall(sealing.LENGTH.pack(len(content)) + content)
                    answer = sealing.receive(ours, sealing.MOST_ANSWERED)
                    told = msgspec.msgpack.decode(answer, type=sealing.Answer)
                    wrong += told.error not in ERRORS
                    if asked > 5000 and not before:
                        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            except TimeoutError:
                hangs += 1
            except (EOFError, OSError):
                pass
            ours.close()
            sealer.join(30)
            hangs += sealer.is_alive()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{asked} questions in {time.monotonic() - begun:.0f} s: {hangs} hangs, {wrong} other "
        "errors, "
        f"peak {before} -> {after} KiB"
    )
    return int(bool(hangs or wrong or (before and after - before > ALLOWED_KIB)))


if __name__ == "__main__":
    raise SystemExit(main())
