"""Command lines that are parsed without typer, and that typer parses them to the same values."""

from __future__ import annotations

from functools import cache
from inspect import getdoc
from typing import Any

import pytest
import typer
from hypothesis import given, settings, strategies as st

from penstock.cli.application import typed
from penstock.cli.commands import COMMANDS, find
from penstock.cli.declarations import Signature, signature_of
from penstock.cli.output import Output
from penstock.cli.parsing import parse

PLAIN = (
    "run m.tflite",
    "run m.tflite cat.png --top 3 --task classification",
    "run m.tflite -d sample -d null a.npy b.npy",
    "run m.tflite --min-score=0.25 --threads 2 --no-cache --shape x=1,2 --shape y=3",
    "run m.tflite -- -odd-name.png",
    "inspect m.onnx",
    "plan m.tflite --dot - --signature serve",
    "dump m.tflite --after load",
    "bench m.tflite random --runs 5 --seconds 1e-2 --warmup 0 --tune",
    "compare m.tflite --against reference --seed 7",
    "calibrate m.tflite n.onnx --device llvm --seconds 0.5 --dir here",
    "replay f.capsule --timeout 0.5 --runs 2",
    "serve a.tflite n=b.onnx --port 0 --max-delay 0.5 --token-file t --log --shared-memory p",
    "devices",
    "doctor --last-crash",
    "doctor --capsule f --model m --device d --input random",
    "knobs",
    "cache ls --dir /x",
    "cache show abc",
    "cache verify",
    "cache explain m.tflite --preference low_power",
    "cache gc --max-mib 10",
    "cache clear -y",
    "cache prewarm a.tflite b.tflite --priority low",
    "cache publish a.tflite --for x86-64-v3,armv8-a --store s3://bucket/prefix",
    "cache refresh --dir d",
    "cache renew --store s3://bucket/prefix",
    "cache prune --grace-hours 2 --unlist-days 90 --store s3://bucket/prefix",
    "cache keygen key.pem",
    "cache draft d --root-key a.pub --root-key b.pub --threshold 2 --publisher ci=c.pub",
    "cache rotate d --root-key a.pub --root-key b.pub --threshold 2",
    "cache sign d --key root.pem",
    "cache apply d --root root.json",
)

NOT_PLAIN = (
    "run",
    "run m.tflite --help",
    "run m.tflite -h",
    "run m.tflite --nosuch",
    "run m.tflite --to 3",
    "run m.tflite --top",
    "run m.tflite --top 0",
    "run m.tflite --top many",
    "run m.tflite --top --task outputs",
    "run m.tflite --min-score nan",
    "run m.tflite -dsample",
    "run m.tflite -d=sample",
    "run m.tflite --no-cache=yes",
    "inspect a.tflite b.tflite",
    "dump m.tflite",
    "cache prewarm",
    "cache clear -yy",
)


@cache
def signature(name: str) -> Signature:
    return signature_of(COMMANDS[name].load())


@cache
def recorder(name: str) -> tuple[Any, list[dict[str, Any]]]:
    """The command as typer's, which only records the arguments that it would get."""
    calls: list[dict[str, Any]] = []

    def record(_: Output, **arguments: Any) -> None:
        calls.append(arguments)

    return typed(record, signature(name)), calls


def by_typer(name: str, words: list[str]) -> dict[str, Any]:
    command, calls = recorder(name)
    calls.clear()
    command.main(words, name, standalone_mode=False)
    (arguments,) = calls
    return arguments


def plainly(name: str, words: list[str]) -> dict[str, Any] | None:
    values = parse(signature(name).parameters, words)
    return None if values is None else signature(name).arguments(values)


def split(line: str) -> tuple[str, list[str]]:
    found = find(line.split())
    assert found is not None
    return found[0], [*found[1]]


@pytest.mark.parametrize("line", PLAIN)
def test_plain_line_is_parsed_as_by_typer(line: str) -> None:
    name, words = split(line)
    assert plainly(name, words) == by_typer(name, words)


def test_every_command_has_a_plain_line() -> None:
    assert {split(line)[0] for line in PLAIN} == set(COMMANDS)


@pytest.mark.parametrize("line", NOT_PLAIN)
def test_other_lines_are_left_to_typer(line: str) -> None:
    assert plainly(*split(line)) is None


def test_empty_words_are_values() -> None:
    arguments = plainly("run", ["", "", "--labels", ""])
    assert arguments is not None
    assert arguments == by_typer("run", ["", "", "--labels", ""])
    assert (arguments["model"], arguments["inputs"], arguments["labels"]) == ("", [""], "")


VALUES = ("3", "-1", "0", "0.5", "1e3", "x.png", "a b", "", "-", "--", "=", "a=1,2", "\u0663", "+1")


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A command, and words that it knows, mostly."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    names = [n for p in signature(name).parameters for n in p.declared.names]
    option = st.sampled_from([*names, "--help", "--nosuch", "-q"])
    value = st.sampled_from(VALUES)
    with_value = st.builds(lambda n, v: f"{n}={v}", option, value)
    return name, draw(st.lists(st.one_of(option, value, with_value), max_size=6))


@given(lines())
@settings(max_examples=400, deadline=None)
def test_values_of_plain_lines_equal_those_of_typer(line: tuple[str, list[str]]) -> None:
    arguments = plainly(*line)
    if arguments is not None:
        assert arguments == by_typer(*line)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_summary_is_the_first_paragraph_of_the_command_s_help(name: str) -> None:
    words = getdoc(COMMANDS[name].load())
    assert words is not None
    assert COMMANDS[name].summary == " ".join(words.partition("\n\n")[0].split())


def test_typer_refuses_what_a_plain_line_lacks() -> None:
    with pytest.raises(typer.TyperException):
        by_typer("dump", ["m.tflite"])
