"""Prints where each thread is when a test runs for ten minutes.

`faulthandler_timeout` of pytest starts and ends a thread for this in each test, which takes as long
as the shorter tests. Here one thread serves the tests of some seconds.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Generator
from typing import Final

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

SECONDS: Final = 600.0
EARLIER: Final = 10.0
"""How many seconds before those the traces may be printed."""


class Hangs:
    """The plugin that watches the tests of *config*."""

    def __init__(self, config: pytest.Config) -> None:
        self._file = config.stash[fault_handler_stderr_fd_key]
        self._since = -EARLIER

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        if (now := time.monotonic()) >= self._since + EARLIER:
            faulthandler.dump_traceback_later(SECONDS, file=self._file)
            self._since = now
        return (yield)

    def pytest_exception_interact(self) -> None:
        """Pytest stops watching when a test has failed; the next test starts anew."""
        self._since = -EARLIER

    def pytest_enter_pdb(self) -> None:
        self._since = -EARLIER

    def pytest_sessionfinish(self) -> None:
        faulthandler.cancel_dump_traceback_later()
