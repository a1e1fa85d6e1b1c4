"""Whether other Python threads go on while an engine computes: whether it lets the interpreter's
lock go.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise


def goes_on_during(run: Callable[[], object]) -> bool:
    """Whether in one of 20 calls of ``run`` another thread got turns throughout it.

    While it looks, no thread is made to give the lock away, so who holds it is the only one that
    goes on. An engine that releases it shows so in the first call; on a busy machine the other
    thread may find no processor for one.
    """
    seen: list[int] = []
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            seen.append(time.perf_counter_ns())
            time.sleep(0)

    def goes_on() -> bool:
        seen.clear()
        while not seen:
            time.sleep(0)
        began = time.perf_counter_ns()
        run()
        ended = time.perf_counter_ns()
        inside = [began, *(at for at in list(seen) if began < at < ended), ended]
        # A conversion at either end of the run, by NumPy, is not the computing.
        longest = max(after - before for before, after in pairwise(inside))
        return len(inside) > 10 and longest < 0.5 * (ended - began)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    other = threading.Thread(target=count)
    other.start()
    try:
        return any(goes_on() for _ in range(20))
    finally:
        done.set()
        other.join()
        sys.setswitchinterval(usual)
