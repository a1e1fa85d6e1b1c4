"""When a read is tried again that a store refused: a fleet that starts at once must not ask an
overloaded store in step.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.errors import StoreUnavailable

T = TypeVar("T")

MOST_TRIES: Final = 3

_OVERLOADED: Final = frozenset({429, 503})
_AGAIN: Final = frozenset({408, 429})
_SERVER: Final = 500
_FIRST_PAUSE: Final = 0.1
_LATER: Final = 1.25
"""A pause that the server asked for is made longer by a random part of at most a quarter."""


class Refusal(Exception):
    """The server answered a read with *status*; it asks for a pause of *seconds*, unless 0."""

    def __init__(self, said: str, status: int, seconds: float = 0.0) -> None:
        super().__init__(said)
        self.status, self.seconds = status, seconds

    @property
    def is_overload(self) -> bool:
        return self.status in _OVERLOADED

    @property
    def may_pass(self) -> bool:
        """Whether it is worth another try."""
        return self.status >= _SERVER or self.status in _AGAIN


def patiently(read: Callable[[int], T], seconds: float) -> T:
    """What *read* returns; it is given the number of the try, from 0 on.

    A `Refusal` that may pass and a `StoreUnavailable` lead to another try, `MOST_TRIES` in all and
    for at most *seconds*, after a random pause that grows, or after the pause that an overloaded
    server asked for. Raises `StoreUnavailable`, with `retry_after` if the server asked for a longer
    pause than there is time for, and what *read* raises.
    """
    until = time.monotonic() + seconds
    failure = StoreUnavailable("it was not read")
    for number in range(MOST_TRIES):
        pause = random.uniform(0.2, 1) * min(_FIRST_PAUSE * 4**number, seconds / 4)  # noqa: S311
        try:
            return read(number)
        except Refusal as error:
            if error.is_overload and error.seconds:
                pause = error.seconds * random.uniform(1, _LATER)  # noqa: S311  # a pause
            failure = StoreUnavailable(str(error))
            if error.is_overload:
                failure.retry_after = error.seconds
            if not error.may_pass:
                raise failure from None
        except StoreUnavailable as error:
            failure = error
        if number + 1 == MOST_TRIES or time.monotonic() + pause >= until:
            break
        time.sleep(pause)
    raise failure
