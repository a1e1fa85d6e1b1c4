"""Merging: what neither side lost is there, in order of last use."""

from __future__ import annotations

from hypothesis import given, strategies as st

from penstock.blobcache.persistent import merge

keys = st.sampled_from([b"a", b"b", b"c", b"d"])
entries = st.dictionaries(keys, st.sampled_from([b"1", b"2", b"3"]))
used_keys = st.sets(keys)


@given(entries, entries, entries, used_keys)
def test_each_key_is_as_the_side_that_changed_it_has_it(
    base: dict[bytes, bytes], mine: dict[bytes, bytes], theirs: dict[bytes, bytes], used: set[bytes]
) -> None:
    merged = merge(base, mine, theirs, used)
    for key in base.keys() | mine.keys() | theirs.keys():
        was, own, other = base.get(key), mine.get(key), theirs.get(key)
        if own == was:
            assert merged.get(key) == other
        elif other == was:
            assert merged.get(key) == own
        else:
            assert merged.get(key) == (other if own is None else own)


@given(entries, entries, entries, used_keys)
def test_mine_used_since_come_last_and_each_side_keeps_its_order(
    base: dict[bytes, bytes], mine: dict[bytes, bytes], theirs: dict[bytes, bytes], used: set[bytes]
) -> None:
    order = list(merge(base, mine, theirs, used))
    last = [k for k in mine if k in order and (k in used or k not in theirs)]
    assert order == [k for k in theirs if k in order and k not in last] + last


@given(entries, entries)
def test_merging_with_what_did_not_change_changes_nothing(
    base: dict[bytes, bytes], mine: dict[bytes, bytes]
) -> None:
    assert merge(base, mine, base, mine.keys()) == mine
    assert merge(base, base, mine, set()) == mine
