from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Literal

import numpy as np
import platformdirs
import pytest

import penstock
from penstock import knobs
from penstock.errors import InputError
from penstock.ir import DType, ModelBuilder
from penstock.knobs import KNOBS, Knob, override, settings_path

COUNT = Knob("num_threads", int, 0, "")
RATIO: Knob[float] = Knob("ratio_of_the_tests", float, 0.5, "")
FLAG = Knob("allow_fallback", bool, True, "")
TEXT = Knob("devices", str, "", "")


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The settings file of the test: in a directory of its own, not there at first."""
    path = tmp_path / "knobs.toml"
    monkeypatch.setattr(knobs, "settings_path", lambda: path)
    for knob in (COUNT, RATIO, FLAG, TEXT):
        monkeypatch.delenv(knob.variable, raising=False)
    yield path
    knobs._read_settings.cache_clear()


def test_each_source_beats_the_ones_below(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (COUNT(), COUNT.source()) == (0, (0, "default"))
    settings.write_text("num_threads = 1\n")
    assert (COUNT(), COUNT.source()[1]) == (1, "settings file")
    monkeypatch.setenv("PENSTOCK_NUM_THREADS", "2")
    assert (COUNT(), COUNT.source()[1]) == (2, "environment PENSTOCK_NUM_THREADS")
    with override(num_threads=3):
        assert (COUNT(), COUNT.source()[1]) == (3, "context")
        assert COUNT(4) == 4
        with override(num_threads=5):
            assert COUNT() == 5
        assert COUNT() == 3
    assert COUNT() == 2


def test_values_are_read_when_they_are_used(
    settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("7", "8"):
        monkeypatch.setenv("PENSTOCK_NUM_THREADS", value)
        assert COUNT() == int(value)
    monkeypatch.delenv("PENSTOCK_NUM_THREADS")
    settings.write_text("num_threads = 9\n")
    assert COUNT() == 9
    settings.unlink()
    assert COUNT() == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", True), ("true", True), ("YES", True), (" on ", True),
        ("0", False), ("False", False), ("no", False), ("OFF", False),
    ],
)  # fmt: skip
def test_flags_are_words(text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ALLOW_FALLBACK", text)
    assert FLAG() is value


def test_types_are_converted(monkeypatch: pytest.MonkeyPatch, settings: Path) -> None:
    monkeypatch.setenv("PENSTOCK_RATIO_OF_THE_TESTS", "2")
    assert RATIO() == 2.0
    assert isinstance(RATIO(), float)
    settings.write_text("devices = 'a,b'\nallow_fallback = false\n")
    assert TEXT() == "a,b"
    assert FLAG() is False


@pytest.mark.parametrize(
    ("knob", "text", "wanted"),
    [
        (COUNT, "many", "a whole number"),
        (COUNT, "1.5", "a whole number"),
        (FLAG, "maybe", "true or false"),
        (RATIO, "x", "a number"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_source(
    knob: Knob[int], text: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(knob.variable, text)
    with pytest.raises(InputError, match=f"environment {knob.variable}.* must be {wanted}"):
        knob()


def test_an_argument_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_NUM_THREADS", "nonsense")
    assert COUNT(6) == 6


def test_an_override_of_no_knob_is_refused() -> None:
    with (
        pytest.raises(InputError, match="no knob is named colour, size"),
        override(size=1, colour=2),
    ):
        pass


def test_an_override_belongs_to_its_context() -> None:
    seen: list[int] = []
    with override(num_threads=3):
        thread = threading.Thread(target=lambda: seen.append(COUNT()))
        thread.start()
        thread.join()
        copy_context().run(lambda: seen.append(COUNT()))
    assert seen == [0, 3]


def test_override_ends_with_an_error() -> None:
    with pytest.raises(RuntimeError), override(num_threads=3):
        raise RuntimeError
    assert COUNT() == 0


@pytest.mark.parametrize("content", [b"not toml", b"\xff\xfe", b"num_threads = "])
def test_a_settings_file_that_is_none_is_named(settings: Path, content: bytes) -> None:
    settings.write_bytes(content)
    with pytest.raises(InputError, match=r"knobs\.toml is not valid TOML"):
        COUNT()


def test_the_table_is_whole_and_documented() -> None:
    assert KNOBS
    for name, knob in KNOBS.items():
        assert knob.name == name
        assert knob.variable == f"PENSTOCK_{name.upper()}"
        assert knob.doc.endswith(".")
        assert "- " not in knob.doc
        assert type(knob.default) is knob.kind
    with pytest.raises(TypeError):
        KNOBS["new"] = COUNT  # type: ignore[index]  # the point


def test_the_settings_file_stands_in_the_user_s_configuration() -> None:
    assert settings_path.__wrapped__() == str(Path(knobs.user_directory("config"), "knobs.toml"))


@pytest.mark.parametrize("kind", ["cache", "config", "state"])
@pytest.mark.parametrize(
    "environment",
    [
        {"HOME": "/home/ada"},
        {"HOME": "/home/ada/"},
        {"HOME": ""},
        {"HOME": "ada"},
        {},
        {"HOME": "/home/ada", "XDG_{}_HOME": "/data"},
        {"HOME": "/home/ada", "XDG_{}_HOME": "data"},
        {"HOME": "/home/ada", "XDG_{}_HOME": ""},
        {"XDG_{}_HOME": "/data/"},
    ],
)
def test_directories_are_where_platformdirs_has_them(
    kind: Literal["cache", "config", "state"],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HOME", "XDG_{}_HOME"):
        monkeypatch.delenv(name.format(kind.upper()), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name.format(kind.upper()), value)
    expected = getattr(platformdirs, f"user_{kind}_dir")("penstock", appauthor=False)
    assert knobs.user_directory(kind) == expected


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"key_store": "foo"}, "must be one of auto, file, not 'foo'"),
        ({"driver_settings": "Now"}, "must be NAME=VALUE, ..., not 'Now'"),
        ({"cache_limit_mib": -1}, "must be a whole number, 0 or more, not -1"),
        ({"lease_seconds": float("nan")}, "must be a number, 0 or more, not nan"),
        ({"lease_seconds": "inf"}, "must be a number, 31,536,000 at most, not 'inf'"),
        ({"late_write_seconds": "soon"}, "must be a number, not 'soon'"),
        ({"allow_fallback": "maybe"}, "must be true or false, not 'maybe'"),
        ({"state_dir": "state"}, "must be an absolute path, not 'state'"),
        ({"cache_dir": "./cache"}, "must be an absolute path, not './cache'"),
        ({"tensor_limit_mib": -1}, "must be a whole number, 0 or more, not -1"),
        ({"densify_limit_mib": -1}, "must be a whole number, 0 or more, not -1"),
        ({"metadata_limit_mib": -1}, "must be a whole number, 0 or more, not -1"),
        ({"stream_limit_mib": 0}, "must be a whole number, 1 or more, not 0"),
        ({"lent_limit_mib": -1}, "must be a whole number, 0 or more, not -1"),
    ],
)
def test_a_value_that_a_knob_cannot_have(values: dict[str, object], wanted: str) -> None:
    (name,) = values
    with override(**values), pytest.raises(InputError, match=re.escape(wanted)):
        KNOBS[name]()
    with override(**values), pytest.raises(InputError, match=f"knob {name} "):
        knobs.check()


def test_misspelt_driver_settings_are_warned_of_once() -> None:
    setting = knobs.DriverSetting("tiny_level", ("fast", "small"))
    knobs.DriverSetting("tiny_mode", ("usual", "other"))
    given = "tiny_level=small, tiny_mode=other, tiny_levl=fast, tny_level=fast, other_level=fast"
    with override(driver_settings=given), pytest.warns(UserWarning, match="tiny has no") as caught:
        assert [setting(), setting()] == ["small", "small"]
    assert [str(warning.message) for warning in caught] == [
        f"knob driver_settings: tiny has no setting {name!r}; it has tiny_level, tiny_mode"
        for name in ("tiny_levl", "tny_level")
    ]


def test_without_unknown_driver_settings_none_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "difflib", raising=False)
    setting = knobs.DriverSetting("tiny_level", ("fast", "small"))
    for given in ("", "tiny_level=fast,"):
        with override(driver_settings=given):
            assert setting() == "fast"
    assert "difflib" not in sys.modules


NUMBERS = [name for name, knob in KNOBS.items() if knob.kind in {int, float}]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_no_clock_or_counter_holds_is_refused(name: str) -> None:
    for digits in ("9" * 30, "9" * 5000):
        with override(**{name: digits}), pytest.raises(InputError, match="must be a ") as refused:
            KNOBS[name]()
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("isolate", [False, True])
def test_compiling_and_running_take_the_largest_number(
    name: str, isolate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isolate and sys.platform != "linux":
        pytest.skip("isolation is Linux's")
    knob = KNOBS[name]
    monkeypatch.setenv(knob.variable, f"{knob.kind(knob.most):.0f}")
    builder = ModelBuilder()
    x = builder.input(DType.FLOAT32, (4,), "x")
    model = builder.build(builder.operation("ABS", [x], [(DType.FLOAT32, (4,))]))
    with penstock.compile(
        model, devices=["sample", "reference"], isolate=isolate, cache=tmp_path
    ) as compiled:
        (found,) = compiled(-np.ones(4, np.float32))
    np.testing.assert_array_equal(found, np.ones(4, np.float32))


@pytest.mark.parametrize("path", ["", "~/penstock", str(Path("penstock").absolute())])
def test_a_directory_may_be_the_user_s_own_below_a_home_or_absolute(path: str) -> None:
    with override(cache_dir=path):
        assert knobs.cache_dir() == path


@pytest.mark.skipif(sys.platform == "win32", reason="paths of POSIX")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/a//b/./c/", "/a/b/c"),
        ("/", "/"),
        ("/a/link/../b", "/a/link/../b"),
        ("~/x", "/home/somebody/x"),
        ("x/./y", "/here/x/y"),
        ("", "/here"),
    ],
)
def test_an_absolute_path_keeps_what_may_be_links(
    given: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setattr(os, "getcwd", lambda: "/here")
    assert knobs.absolute(given) == expected


def test_missing_home_directory_is_named() -> None:
    with pytest.raises(InputError, match="'~nobody of that name/x' is below the home of a user"):
        knobs.absolute("~nobody of that name/x")
