"""The arguments of a compile that are part of its cache key, as options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.cli.failures import UsageError
from penstock.cli.shapes import parse_shapes


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
    """Keywords for `penstock.compile`. Raises `UsageError` for a word that is not one of an
    option's.
    """
    from penstock.cli.opening import check_devices, policy_of
    from penstock.hal import PREFERENCES, PRIORITIES

    check_devices(devices or ())
    chosen = {
        "preference": _word("--preference", preference, PREFERENCES),
        "priority": _word("--priority", priority, PRIORITIES),
    }
    return {
        **{name: value for name, value in chosen.items() if value is not None},
        "devices": list(devices) if devices else None,
        "num_threads": threads,
        "signature": signature,
        "shapes": parse_shapes(shapes) or None,
        "policy": policy_of(accuracy),
    }


def _word(option: str, given: str | None, words: Sequence[str]) -> str | None:
    if given is not None and given not in words:
        raise UsageError(f"{option} {given!r} is not one of {', '.join(words)}")
    return given
