"""Fails a test that passes without having checked anything.

A test whose loop finds nothing to compare, or that returns early, looks like a test that passed. So
every test must have made at least one check when it passes: an assertion that held, in the test or
in a helper below `tests/`, or an exception or a warning that it expected (`pytest.raises`,
`pytest.warns`), or a function of `numpy.testing`. A test of something that must only not fail says
so with `does_not_raise`. A property that Hypothesis draws cases for may only refuse them, and is
not held to this.

pytest offers `pytest_assertion_pass` for this, which formats the values of every assertion that
holds: the tests would take three times as long. The function that its rewritten assertions ask
first is counted instead.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import numpy.testing
import pytest
from _pytest.assertion import rewrite

NOTHING_CHECKED: Final = (
    "The test passed without a check: no assertion ran, and no exception or warning was expected. "
    "Find out why it compared nothing; a case that cannot be judged skips with its reason."
)
HOOK_IS_OFF: Final = "enable_assertion_pass_hook = true is missing in the configuration of pytest"

MADE: Final[deque[bool]] = deque(maxlen=1)
"""Not empty once the test that runs has made a check."""

make_check: Final = partial(MADE.append, True)
"""Counts a check. It is no function of Python, and takes no room of a stack that a test has
limited.
"""


def counting(function: Callable[..., Any]) -> Callable[..., Any]:
    """*function*, each of whose calls counts as a check."""

    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        make_check()
        return function(*args, **kwargs)

    return counted


@contextmanager
def does_not_raise() -> Iterator[None]:
    """The check of a block of code that is right when it raises nothing."""
    yield
    make_check()


def count_checks() -> None:
    """Counts the checks of every module below `tests/` that is imported from now on.

    Compiled modules that pytest kept while the hook was off would count nothing: the kept ones have
    a name of their own.
    """
    # As the module says.
    rewrite._check_if_assertion_pass_impl = make_check  # type: ignore[assignment]
    for module, name in (
        (pytest, "raises"),
        (pytest, "warns"),
        *((numpy.testing, name) for name in dir(numpy.testing) if name.startswith("assert_")),
    ):
        setattr(module, name, counting(getattr(module, name)))
    rewrite.PYC_TAIL = f".checked{rewrite.PYC_TAIL}"
    found = {f"tests.{path.stem}" for path in Path(__file__).parent.glob("[!_]*")}
    pytest.register_assert_rewrite(*found.difference(sys.modules))


def count_contract_checks() -> None:
    """Counts what the contract suites require, so that one that requires nothing fails. They raise,
    and do not assert.
    """
    import penstock.testing.contract

    folder = penstock.testing.contract.__name__
    for module in [m for name, m in sys.modules.items() if name.startswith(folder)]:
        for name in {"require", "refused", "allowed"} & vars(module).keys():
            setattr(module, name, counting(getattr(module, name)))


def pytest_configure(config: pytest.Config) -> None:
    if not config.getini("enable_assertion_pass_hook"):
        raise pytest.UsageError(HOOK_IS_OFF)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails *item* where it passes without a check. One that is expected to fail says so by itself
    when it passes.
    """
    MADE.clear()
    yield
    if (
        not MADE
        and not getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        and item.get_closest_marker("xfail") is None
    ):
        pytest.fail(NOTHING_CHECKED, pytrace=False)
