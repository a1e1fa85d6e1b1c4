"""A channel to a dispatcher of this process."""

from __future__ import annotations

from collections import deque

from penstock.ipc import forms, wire
from penstock.ipc.codec import Frame, encode
from penstock.ipc.dispatch import Dispatcher
from penstock.ipc.remote import Channel


class LocalChannel(Channel):
    """Asks *dispatcher*. What finalizers drop is told with the next call, or by `tell`: a finalizer
    may run in the middle of the dispatcher's own work.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self._later: deque[forms.ObjectId] = deque()

    def call(self, frame: Frame) -> Frame:
        self.tell()
        return self.answer(frame)

    def answer(self, frame: Frame) -> Frame:
        """The dispatcher's reply to a call."""
        return self.dispatcher.answer(frame)

    def drop(self, number: forms.ObjectId) -> None:
        self._later.append(number)

    def tell(self) -> None:
        """Closes what was dropped."""
        while self._later:
            self.dispatcher.answer(Frame(encode(wire.Close(self._later.popleft()))))
