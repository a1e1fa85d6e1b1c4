"""`penstock cache keygen`, `draft`, `rotate`, `sign` and `apply`: whom a shared store trusts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

from penstock.cli.cache.sharing import Url
from penstock.cli.declarations import argument, option
from penstock.cli.failures import FileError, UsageError
from penstock.cli.output import Output

if TYPE_CHECKING:
    from penstock.remotecache.administration import Administration

_SECONDS: Final = 60.0

DraftFile = Annotated[str, argument("DRAFT", "The file of the draft.")]


def keygen(
    output: Output,
    path: Annotated[str, argument("FILE", "Where the private key goes; FILE.pub gets the public.")],
) -> None:
    """Make a key pair, for a publisher or for the root of a shared store."""
    from penstock.remotecache.roles import new_key

    private, public, name = new_key()
    _write(path, private, private=True)
    _write(f"{path}.pub", public)
    output.line(f"{path} is private; {path}.pub is the public key {name[:12]}")
    output.json({"private": path, "public": f"{path}.pub", "key": name})


def draft(
    output: Output,
    path: DraftFile,
    root_key: Annotated[
        list[str] | None,
        option("--root-key FILE", "The public key of a holder of a root key: begins a new store."),
    ] = None,
    threshold: Annotated[
        int, option("--threshold N", "How many root keys of a new store must sign.", least=1)
    ] = 1,
    publisher: Annotated[
        list[str] | None,
        option("--publisher NAME=FILE", "Who may publish, with the public key."),
    ] = None,
    revoke: Annotated[
        list[str] | None, option("--revoke NAME", "Who may publish no longer.")
    ] = None,
    store: Url = None,
) -> None:
    """Write what the root keys are to sign: a new store, or other publishers of the store, or with
    neither only later dates.
    """
    from penstock.remotecache.administration import Administration
    from penstock.remotecache.roles import read_public_key
    from penstock.remotecache.settings import remote_at

    publishers = {}
    for each in publisher or []:
        name, equals, file = each.partition("=")
        if not equals:
            raise UsageError(f"--publisher {each!r}: it must be NAME=FILE")
        publishers[name] = read_public_key(file)
    if root_key:
        if revoke:
            raise UsageError("--revoke is for a store that exists, and --root-key begins a new one")
        made = Administration.new(list(map(read_public_key, root_key)), threshold, publishers)
    else:
        remote = remote_at(store, _SECONDS)
        made = Administration.changed(remote, authorize=publishers, revoke=revoke or [])
    _write(path, made.pack())
    _show(output, made)


def rotate(
    output: Output,
    path: DraftFile,
    root_key: Annotated[
        list[str], option("--root-key FILE", "The public key of each holder of a root key.")
    ],
    threshold: Annotated[
        int, option("--threshold N", "How many of these root keys must sign.", least=1)
    ] = 1,
    store: Url = None,
) -> None:
    """Write what the root keys are to sign: other root keys for the store.

    Enough of the present root keys must sign it, and enough of the next ones.
    """
    from penstock.remotecache.administration import Administration
    from penstock.remotecache.roles import read_public_key
    from penstock.remotecache.settings import remote_at

    keys = list(map(read_public_key, root_key))
    made = Administration.changed(remote_at(store, _SECONDS), root_keys=keys, threshold=threshold)
    _write(path, made.pack())
    _show(output, made)


def sign(
    output: Output,
    path: DraftFile,
    key: Annotated[str, option("--key FILE", "The private root key.")],
) -> None:
    """Show a draft, and add the signature of one root key to it."""
    from penstock.remotecache.roles import read_key

    made = _read(path)
    made.sign(read_key(key))
    _write(path, made.pack(), again=True)
    _show(output, made)


def apply(
    output: Output,
    path: DraftFile,
    root: Annotated[
        str | None,
        option("--root FILE", "Where the trusted root of a new store goes, for the machines."),
    ] = None,
    store: Url = None,
) -> None:
    """Make a store of a signed draft, or its next version, with the key of the knob store_key."""
    from penstock.remotecache.settings import own_key, remote_at, store_at

    made = _read(path)
    if made.is_new:
        if root is None:
            raise UsageError("--root FILE is needed for a new store: the machines trust that file")
        _write(root, made.create(store_at(store, _SECONDS), own_key()))
    else:
        made.apply(remote_at(store, _SECONDS), own_key())
    _show(output, made)


def _show(output: Output, made: Administration) -> None:
    lines = made.show()
    for line in lines:
        output.line(line)
    output.json({"draft": lines})


def _read(path: str) -> Administration:
    from penstock.remotecache.administration import MOST_DRAFT_BYTES, Administration
    from penstock.remotecache.roles import read_file

    return Administration.unpack(read_file(path, "the draft", MOST_DRAFT_BYTES))


def _write(path: str, content: bytes, *, private: bool = False, again: bool = False) -> None:
    """Writes a new file, or the same one *again*. Raises `FileError`."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if again else os.O_EXCL)
    try:
        with os.fdopen(os.open(path, flags, 0o600 if private else 0o644), "wb") as file:
            file.write(content)
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror or error}") from None
