"""The buffers of a file to be written: constants, each once, and where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.ir.model import Model
from penstock.ir.operand import DataLocation, Operand
from penstock.ir.subgraph import Variable, constant_bytes

ALIGNMENT: Final = 16
SMALL: Final = 128
"""Contents up to this size always stand inside: most are read by tools, and offsets would be as
large.
"""


class Buffers:
    """Hands out buffer indexes; buffer 0 is the empty one, as TFLite has it."""

    PLACEHOLDER: Final = 1 << 40

    def __init__(self, model: Model) -> None:
        self._model = model
        self._contents: list[memoryview] = []
        self._known: dict[DataLocation | bytes, int] = {}
        self._movable: set[int] = set()
        self._tables: dict[tuple[object, object], int] = {}
        self.nbytes = 0

    def constant(self, item: Operand | Variable) -> int:
        """The buffer of a constant operand or an initial value; 0 when it has no bytes."""
        key = item.value if item.value is not None else item.location
        if key is None:
            return 0
        content = constant_bytes(self._model.pools, item)
        index = self._add(key, content)
        if content.nbytes > SMALL:
            self._movable.add(index)
        return index

    def blob(self, content: bytes) -> int:
        """A buffer with *content*."""
        return self._add(content, memoryview(content))

    def table_number(self, keys: Operand, values: Operand) -> int:
        """The number, in this file, of the hash table with this content."""
        key = keys.value or keys.location, values.value or values.location
        return self._tables.setdefault(key, len(self._tables))

    def _add(self, key: DataLocation | bytes, content: memoryview) -> int:
        if not content.nbytes:
            return 0
        if key not in self._known:
            self._contents.append(content)
            self._known[key] = len(self._contents)
            self.nbytes += content.nbytes
        return self._known[key]

    def inline(self) -> list[dict[str, Any]]:
        """The buffer tables with their bytes inside."""
        return [{}, *({"data": content} for content in self._contents)]

    def external(self, start: int) -> list[dict[str, Any]]:
        """The buffer tables, large constants behind a FlatBuffer of *start* bytes."""
        tables: list[dict[str, Any]] = self.inline()
        for index, at, content in self._placed(start):
            tables[index] = {"offset": at, "size": content.nbytes}
        return tables

    def tail(self, start: int) -> Iterator[bytes | memoryview]:
        """What stands behind a FlatBuffer of *start* bytes."""
        for _, at, content in self._placed(start):
            yield bytes(at - start)
            yield content
            start = at + content.nbytes

    def _placed(self, start: int) -> Iterator[tuple[int, int, memoryview]]:
        for index in sorted(self._movable):
            content = self._contents[index - 1]
            start += -start % ALIGNMENT
            yield index, start, content
            start += content.nbytes
