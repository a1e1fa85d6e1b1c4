"""What the doors of `penstock.delegates` say of arguments that cannot be, and what tools can ask of
its classes.
"""

from __future__ import annotations

import inspect
import logging
import typing
from pathlib import Path
from typing import Any

import pytest

from penstock import delegates, tflite
from penstock.delegates import DriverDelegate, NnapiDelegate
from penstock.errors import DeviceUnavailable, InputError
from tests.unit.delegates import graphs
from tests.unit.delegates.recorder import Recorder
from tests.unit.delegates.test_delegates import opened

CLASSES = [n for n in delegates.__all__ if inspect.isclass(getattr(delegates, n))]


@pytest.mark.parametrize("name", CLASSES)
def test_tools_can_look_at_every_class(name: str) -> None:
    found = getattr(delegates, name)
    assert typing.get_type_hints(found) is not None
    if not issubclass(found, BaseException):  # Python itself cannot tell those apart
        inspect.signature(found)


def test_registration_functions_have_typed_arguments() -> None:
    hints = typing.get_type_hints(delegates.DelegateRegistration)
    arguments, returned = typing.get_args(typing.get_args(hints["init"])[0])
    assert list(arguments) == [delegates.DelegateContext, delegates.DelegateParams]
    assert returned is Any
    names = list(inspect.signature(delegates.DelegateRegistration).parameters)
    assert names == ["custom_name", "builtin_code", "init", "prepare", "invoke", "free", "version"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": 3}, "policy must be a Policy, not int"),
        ({"preference": "fast"}, "preference 'fast' is not one of"),
        ({"priority": 1}, "priority 1 is not one of"),
        ({"num_threads": 0}, "num_threads must be a whole number, 1 or more, not 0"),
        ({"num_threads": True}, "num_threads must be"),
        ({"cache": 3.5}, "cache must be .*, not 3.5"),
        ({"cache": ""}, "cache must be .*, not ''"),
    ],
    ids=str,
)
def test_options_are_checked_when_they_are_given(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DriverDelegate("reference", **options)


@pytest.mark.parametrize("cache", [None, True, False, "here", Path("here")], ids=str)
def test_delegate_accepts_every_cache_of_compile(cache: Any) -> None:
    assert DriverDelegate("reference", cache=cache, num_threads=1).cache == cache


def test_unusable_cache_directory_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    taken = tmp_path / "file"
    taken.write_bytes(b"")
    with pytest.raises(InputError, match=r"cache_dir must be a directory, and '.*file' is none"):
        NnapiDelegate("reference", cache_dir=taken)
    place = taken / "inside"
    NnapiDelegate("reference", cache_dir=place)
    (record,) = caplog.records
    told = f"NnapiDelegate(reference) keeps nothing in cache_dir {place}: Not a directory"
    assert record.getMessage() == told
    caplog.clear()
    NnapiDelegate("reference", cache_dir=tmp_path / "made" / "here")
    assert caplog.records == []
    assert (tmp_path / "made" / "here").is_dir()


@pytest.mark.parametrize(
    "kind", [delegates.GpuDelegate, delegates.HexagonDelegate, delegates.CoreMLDelegate]
)
def test_a_device_that_there_is_not(kind: Any) -> None:
    with pytest.raises(DeviceUnavailable, match="no device is named 'nope'"):
        kind(device="nope")


def test_a_class_in_the_place_of_an_object() -> None:
    content = graphs.chain("NEG")
    told = r"^Recorder is a class; a delegate is an object of it: Recorder\(\)$"
    with pytest.raises(AttributeError, match=told):
        tflite.Interpreter(model_content=content, experimental_delegates=[Recorder])
    with pytest.raises(AttributeError, match=told):
        opened(content).modify_graph_with_delegate(Recorder)


@pytest.mark.parametrize("load", [delegates.load_delegate, tflite.load_delegate, tflite.Delegate])
def test_a_library_must_be_named(load: Any) -> None:
    with pytest.raises(AttributeError, match=r"^no library is named; a delegate is loaded from"):
        load("")
