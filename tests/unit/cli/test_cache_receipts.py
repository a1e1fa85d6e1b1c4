"""What a compile says of the cache: the lines below a plan, and the bar while it lasts."""

from __future__ import annotations

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from penstock.cli import output
from penstock.compilation import CacheOutcome, Failure, Receipt, StepReceipt
from penstock.compilation.cache_faults import CacheCode
from penstock.hal import ProgressEvent

HIT = CacheOutcome("hit")
OFF = CacheOutcome("off", "device slow does not cache")
FIRST = CacheOutcome("miss", "NoEntry: nothing is cached here", saved=True, code=CacheCode.NO_ENTRY)
BROKEN = CacheOutcome(
    "miss",
    "SealBroken: model cache file 0 was altered",
    not_saved="disk full",
    code=CacheCode.SEAL_BROKEN,
)

COME_WITH_TIME = {CacheCode.NO_ENTRY, CacheCode.NOT_YET_WRITTEN, CacheCode.INGREDIENT_CHANGED}


def printed(*steps: tuple[str, CacheOutcome]) -> list[str]:
    stream = io.StringIO()
    receipt = Receipt(tuple(StepReceipt(device, (0,), 1, cache=told) for device, told in steps))
    output.show_cache(output.Output(console=Console(file=stream, width=200)), receipt)
    return stream.getvalue().splitlines()


def test_each_device_and_outcome_has_one_line() -> None:
    assert printed(("fast", HIT), ("slow", OFF), ("fast", HIT), ("fast", BROKEN)) == [
        "cache: fast hit (2 steps)",
        "cache: slow off: device slow does not cache",
        "cache: fast miss: SealBroken: model cache file 0 was altered; not saved: disk full",
    ]


def test_misses_under_one_name_share_a_line() -> None:
    other = replace(FIRST, reason="NoEntry: the nearest entry differs in partition")
    assert printed(("fast", FIRST), ("fast", other)) == [
        "cache: fast miss (2 steps): NoEntry: nothing is cached here; saved; 1 other reason"
    ]
    worse = replace(BROKEN, reason="SealBroken: model cache file 1 was altered")
    assert len(printed(("fast", BROKEN), ("fast", worse), ("slow", FIRST), ("fast", FIRST))) == 4


def test_a_model_without_steps_has_no_line() -> None:
    assert printed() == []


def test_cache_outcome_names_a_save() -> None:
    assert output.in_words(FIRST) == "miss: NoEntry: nothing is cached here; saved"
    assert output.in_words(CacheOutcome("hit", "optimised"), 3) == "hit (3 steps): optimised"


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        (HIT, False),
        (OFF, False),
        (FIRST, False),
        (BROKEN, True),
        *(
            (CacheOutcome("miss", "SealBroken: or not", code=code), code not in COME_WITH_TIME)
            for code in CacheCode
        ),
        (CacheOutcome("miss", "SealBroken: in words alone"), False),
    ],
)
def test_refusals_stand_out(outcome: CacheOutcome, answer: bool) -> None:
    assert output.refused(outcome) is answer


def test_off_a_terminal_there_is_no_bar_and_no_callback() -> None:
    with output.compile_bar(output.Output()) as progress:
        assert progress is None


def test_events_in_words() -> None:
    assert output.words(ProgressEvent("compile", "fast", 0, 2)) == "compiling on fast"
    assert output.words(ProgressEvent("compile", "", 2, 2)) == "compiling"
    assert "waiting" in output.words(ProgressEvent("lease", "fast", 0, 1))
    assert output.words(ProgressEvent("tiling", "fast", 0, 1)) == "tiling fast"


@pytest.mark.parametrize(("stage", "act"), [("compile", "compile"), ("run", "run")])
def test_a_device_that_failed_is_named_with_its_reason(stage: Any, act: str) -> None:
    stream = io.StringIO()
    fast, wide = Failure("fast", "GeneralFailure: no room"), Failure("wide", "GeneralFailure: hot")
    steps = (
        StepReceipt("reference", (0,), 1, failures=(fast, wide)),
        StepReceipt("slow", (1,), 1),
        StepReceipt("reference", (2,), 1, failures=(fast,)),
    )
    output.show_fallbacks(
        output.Output(console=Console(file=stream, width=200)), Receipt(steps, stage=stage)
    )
    assert stream.getvalue() == (
        f"fallback: fast failed to {act} (2 steps): GeneralFailure: no room\n"
        f"fallback: wide failed to {act}: GeneralFailure: hot\n"
    )


def test_run_omits_failures_of_the_compile() -> None:
    stream = io.StringIO()
    dead, hot = Failure("fast", "DeadObject: gone"), Failure("slow", "GeneralFailure: hot")
    before = Receipt((StepReceipt("reference", (0,), 1, failures=(dead,)),), stage="compile")
    after = Receipt((StepReceipt("reference", (0,), 1, failures=(dead, hot)),), stage="run")
    output.show_fallbacks(output.Output(console=Console(file=stream, width=200)), before, after)
    assert stream.getvalue() == (
        "fallback: fast failed to compile: DeadObject: gone\n"
        "fallback: slow failed to run: GeneralFailure: hot\n"
    )
