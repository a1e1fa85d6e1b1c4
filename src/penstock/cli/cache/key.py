"""The arguments of a compile that are part of its cache key, as options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from penstock.cli.failures import UsageError


def compile_arguments(
    *,
    devices: Sequence[str] | None,
    preference: str | None,
    priority: str | None,
    accuracy: str | None,
    threads: int | None,
    signature: str | None,
    shapes: Sequence[str] | None,
) -> dict[str, Any]:
    """Keywords for `penstock.compile`. Raises `UsageError` for a word that is not one of an option's."""
    from penstock.cli.opening import check_devices
    from penstock.hal import PREFERENCES, PRIORITIES, AccuracyClass
    from penstock.partitioning.policy import Policy

    check_devices(devices or ())
    chosen = {
        "preference": _word("--preference", preference, PREFERENCES),
        "priority": _word("--priority", priority, PRIORITIES),
    }
    word = _word("--accuracy", accuracy, get_args(AccuracyClass))
    return {
        **{name: value for name, value in chosen.items() if value is not None},
        "devices": list(devices) if devices else None,
        "num_threads": threads,
        "signature": signature,
        "shapes": dict(map(_shape, shapes)) if shapes else None,
        "policy": None if word is None else Policy(accuracy=word),  # type: ignore[arg-type]  # checked above
    }


def _word(option: str, given: str | None, words: Sequence[str]) -> str | None:
    if given is not None and given not in words:
        raise UsageError(f"{option} {given!r} is not one of {', '.join(words)}")
    return given


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`name=1,2` as a pair; a name may hold a `=` itself."""
    name, equals, numbers = text.rpartition("=")
    parts = [part.strip() for part in numbers.split(",")] if numbers.strip() else []
    if not equals or not name or not all(part.isdecimal() for part in parts):
        raise UsageError(f"--shape {text!r}: it must be NAME=N,N,... with whole numbers")
    return name, tuple(map(int, parts))
