"""Counts how often code that copies arrays runs, to compare receipts with it."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

COPIES: Final = ("copyto", "array", "ascontiguousarray", "copy", "concatenate", "tobytes")
"""NumPy's functions and methods that copy."""

BUFFERS: Final = ("copy_from", "copy_to", "numpy", "fetch_value", "put_value")
"""What copies to and from device buffers."""


def copying(tree: ast.AST) -> list[str]:
    """The functions, by qualified name, in which an array is copied."""
    found: list[str] = []

    def visit(node: ast.AST, place: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = place
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{place}.{child.name}" if place else child.name
            if copies(child):
                found.append(place)
            visit(child, inner)

    visit(tree, "")
    return list(dict.fromkeys(found))


def copies(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Subscript) and is_whole(t.slice) for t in node.targets)
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Name):
        return function.id in BUFFERS
    if not isinstance(function, ast.Attribute) or function.attr not in (*COPIES, *BUFFERS):
        return False
    of_numpy = isinstance(function.value, ast.Name) and function.value.id == "np"
    if function.attr in BUFFERS:
        return True
    return of_numpy or function.attr == "tobytes" or (function.attr == "copy" and not node.args)


def is_whole(index: ast.AST) -> bool:
    """Whether all of an array is written over: `[...]` or `[:]`."""
    if isinstance(index, ast.Slice):
        return index.lower is index.upper is index.step is None
    return isinstance(index, ast.Constant) and index.value is ...


class Counted:
    """How many times code copied arrays; by its places, for messages."""

    def __init__(self) -> None:
        self.places: list[str] = []

    def __len__(self) -> int:
        return len(self.places)

    def add(self, place: str) -> None:
        self.places.append(place)


@contextmanager
def counted(
    root: Path, patterns: Sequence[str], without: Collection[tuple[str, str]]
) -> Iterator[Counted]:
    """Counts the lines that copy arrays, each time that one runs in any thread: of the files below
    *root* that *patterns* match, but for the functions of *without*, by file and qualified name.
    """
    found = Counted()
    known: dict[str, dict[int, str]] = {}
    for path in (path for pattern in patterns for path in root.glob(pattern)):
        name = path.relative_to(root).as_posix()
        known[str(path)] = {n: f for n, f in _lines(path).items() if (name, f) not in without}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        lines = known.get(frame.f_code.co_filename)
        if lines is None or frame.f_code.co_qualname not in lines.values():
            return None

        def inside(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line" and frame.f_lineno in lines:
                found.add(f"{lines[frame.f_lineno]}:{frame.f_lineno}")
            return inside

        return inside

    before, inherited = sys.gettrace(), threading.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)
        threading.settrace(inherited)


@cache
def _lines(path: Path) -> dict[int, str]:
    """The lines that copy, each with its function."""
    found: dict[int, str] = {}

    def visit(node: ast.AST, place: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = place
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{place}.{child.name}" if place else child.name
            if moves(child):
                found[child.lineno] = place  # type: ignore[attr-defined]  # has one
            visit(child, inner)

    visit(ast.parse(path.read_text("utf-8")), "")
    return found


def moves(node: ast.AST) -> bool:
    """Whether that is a copy itself, and not a call of what copies device buffers."""
    if not copies(node):
        return isinstance(node, ast.Call) and _called(node) in {"preadv", "pwritev"}
    return not isinstance(node, ast.Call) or _called(node) not in BUFFERS


def _called(node: ast.Call) -> str:
    function = node.func
    return getattr(function, "attr", getattr(function, "id", ""))
