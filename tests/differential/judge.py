"""`Judge`: LiteRT's answer to a file and its inputs, whatever that does to the process that
computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.ir import NDArray
from tests.differential.apart import Apart
from tests.differential.worker import RESOLVERS, Answer

PATIENCE: Final = 20.0
"""Seconds that LiteRT may take for one small model."""

REFERENCE, DEFAULT = RESOLVERS
DELEGATED: Final = "BUILTIN"
"""The default kernels and XNNPACK."""

MISSING: Final = "Didn't find op"
UNRESOLVED: Final = "unresolved custom op"


class Judge(Apart):
    """A process that runs LiteRT."""

    def __init__(self) -> None:
        super().__init__("tests.differential.worker", PATIENCE)

    def ask(self, file: bytes, inputs: Sequence[NDArray], resolver: str = REFERENCE) -> Answer:
        """The outputs, or LiteRT's words of refusal. Raises `Crashed` when this model brought it
        down.
        """
        answer: Answer = self.answer(file, list(inputs), resolver)
        return answer
