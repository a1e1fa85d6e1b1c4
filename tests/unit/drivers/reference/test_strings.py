"""Strings in every operator whose LiteRT kernel takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import InputError
from penstock.ir import DType, NDArray
from tests.support_litert import Given, Wanted, single_operation
from tests.support_runs import assert_same_runs, strings
from tests.unit.loaders.files import FileBuilder

TEXT, BOOL, I32 = Wanted(DType.STRING), Wanted(DType.BOOL), Wanted(DType.INT32)
FOUR = strings("a", "bb", "", "dddd")
SQUARE = FOUR.reshape(2, 2)
SCALAR = strings("f").reshape(())


def constant(*values: int) -> Given:
    return Given(np.array(values, np.int32), constant=True)


def ends(*values: int) -> Given:
    return Given(np.array(values, np.int32).reshape(1, -1), constant=True)


CASES: dict[str, tuple[str, Sequence[Given], Wanted, dict[str, Any]]] = {
    "reshape": ("RESHAPE", [Given(FOUR), constant(2, 2)], TEXT, {}),
    "reshape at run time": ("RESHAPE", [Given(FOUR), Given(np.array([2, 2], np.int32))], TEXT, {}),
    "squeeze": ("SQUEEZE", [Given(FOUR.reshape(1, 4))], TEXT, {}),
    "expand": ("EXPAND_DIMS", [Given(FOUR), constant(0)], TEXT, {}),
    "gather": ("GATHER", [Given(FOUR), constant(1, 0, 3)], TEXT, {}),
    "gather by vector": ("GATHER_ND", [Given(SQUARE), ends(1, 0)], TEXT, {}),
    "slice": ("SLICE", [Given(SQUARE), constant(0, 1), constant(2, 1)], TEXT, {}),
    "strided slice": (
        "STRIDED_SLICE",
        [Given(FOUR), constant(0), constant(4), constant(2)],
        TEXT,
        {},
    ),
    "strided slice of a row": (
        "STRIDED_SLICE",
        [Given(SQUARE), constant(1, 0), constant(2, 2), constant(1, 1)],
        TEXT,
        {"shrink_axis_mask": 1},
    ),
    "tile": ("TILE", [Given(SQUARE), constant(2, 3)], TEXT, {}),
    "fill": ("FILL", [constant(2, 2), Given(SCALAR)], TEXT, {}),
    "rank": ("RANK", [Given(SQUARE)], I32, {}),
    "shape": ("SHAPE", [Given(SQUARE)], I32, {"out_type": "INT32"}),
    "equal": ("EQUAL", [Given(FOUR), Given(FOUR[::-1].copy())], BOOL, {}),
    "equal, broadcast": ("EQUAL", [Given(SQUARE), Given(strings("a", "dddd"))], BOOL, {}),
    "not equal": ("NOT_EQUAL", [Given(FOUR), Given(strings("a"), constant=True)], BOOL, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_operations_on_strings_agree_with_litert(case: str) -> None:
    kind, given, wanted, attributes = CASES[case]
    content = single_operation(kind, given, [wanted], **attributes)
    feed = [g.value for g in given if g.value is not None and not g.constant]
    assert_same_runs(content, [feed])


def test_strings_of_any_bytes_stay_as_they_are() -> None:
    odd = strings(b"\0", b"\xff\xfe", "h\u00e9", b"a\0b", b"x" * 1000)
    given = [Given(odd), constant(4, 3, 2, 1, 0)]
    content = single_operation("GATHER", given, [TEXT])
    with penstock.compile(content, cache=None) as compiled:
        assert compiled(odd)[0].tolist() == odd[::-1].tolist()


def test_strings_pass_through_control_flow() -> None:
    file = FileBuilder()
    c, x, y = (
        file.tensor(n, [k], t)
        for n, k, t in (("c", 1, "BOOL"), *([(n, 4, "STRING") for n in "xy"]))
    )
    file.operator("IF", [c, x], [y], {"then_subgraph_index": 1, "else_subgraph_index": 2})
    file.end([c, x], [y])
    for order in ([3, 2, 1, 0], [0, 0, 0, 0]):
        file.begin()
        x, y = file.tensor("x", [4], "STRING"), file.tensor("y", [4], "STRING")
        places = file.tensor("places", [4], "INT32", np.array(order, np.int32))
        file.operator("GATHER", [x, places], [y])
        file.end([x], [y])
    assert_same_runs(file.encode(), [[np.array([c]), FOUR] for c in (True, False)])


def take(given: Any) -> list[bytes]:
    content = single_operation("GATHER", [Given(FOUR), constant(1, 0)], [TEXT])
    with penstock.compile(content, cache=None) as compiled:
        found: NDArray = compiled(given)[0]
    return [bytes(item) for item in found.tolist()]


@pytest.mark.parametrize(
    "given",
    [
        FOUR,
        np.array([b"a", b"bb", b"", b"dddd"]),
        np.array(["a", "bb", "", "dddd"]),
        np.array(["a", "bb", "", "dddd"], object),
        ["a", "bb", "", "dddd"],
        [b"a", b"bb", b"", b"dddd"],
        ("a", b"bb", "", "dddd"),
    ],
    ids=["object", "S", "U", "str objects", "list of str", "list of bytes", "tuple of both"],
)
def test_string_inputs_may_be_str_bytes_or_arrays(given: Any) -> None:
    assert take(given) == [b"bb", b"a"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["a", "b"], "shape"),
        ([["a", "b"], ["c"]], "list was given"),
        ([1, 2, 3, 4], "use bytes or str"),
        ("abcd", "shape"),
    ],
)
def test_lists_that_are_no_strings_of_the_shape_are_named(given: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        take(given)
