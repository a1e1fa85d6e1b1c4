"""The words that say in what a cache entry differs."""

from __future__ import annotations

from penstock.cache.ingredients import MOST_WORDS, describe_changes


def test_some_changes_of_a_long_list_are_named_and_the_rest_counted() -> None:
    before = {"distributions": " ".join(f"old-{n:02}" for n in range(20))}
    now = {"distributions": "old-00 old-01 old-02 old-03 new"}
    text = describe_changes(before, now)
    assert text.startswith("distributions (-old-04, ")
    assert text.count("-old") == MOST_WORDS
    assert text.endswith("-8 more +new)")


def test_version_and_source_are_not_named_where_the_device_is_another() -> None:
    before = {"device": "xnnpack", "version": "5 (litert 2.3.0)", "source": "a:b", "accuracy": "x"}
    now = {"device": "llvm", "version": "1", "source": "a:c", "accuracy": "y"}
    text = describe_changes(before, now)
    assert "device (xnnpack -> llvm)" in text
    assert "accuracy (x -> y)" in text
    assert "version" not in text
    assert "source" not in text
    same = describe_changes(before, {**now, "device": "xnnpack"})
    assert "version" in same
