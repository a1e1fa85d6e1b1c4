"""The roles of the metadata of a store, their names, limits and keys.

The metadata is that of The Update Framework (TUF): `root` names the keys of all roles, `targets`
names the publishers, each publisher's role names its hash bins, which list its entries, `snapshot`
has the version of each list, and `timestamp` that of the snapshot.
"""

from __future__ import annotations

import re
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.signer import CryptoSigner, SSlibKey

from penstock.errors import InputError, Unreadable

METADATA: Final = "metadata"
ENTRIES: Final = "entries"
LEASES: Final = "leases"
"""The prefixes of the objects of a store. Nothing below `LEASES` is signed."""

TIMESTAMP: Final = f"{METADATA}/timestamp.json"

MOST_ROOT: Final = 1 << 18
MOST_TIMESTAMP: Final = 1 << 14
MOST_SNAPSHOT: Final = 1 << 20
MOST_TARGETS: Final = 1 << 23
"""Maximum bytes of the metadata of each kind. An entry takes some 470 bytes of its list."""

MOST_ROTATIONS: Final = 256
"""Maximum versions of the root that a machine follows from the one that it was given."""

MOST_PUBLISHERS: Final = 16

MOST_DELEGATIONS: Final = 2
"""How often a role may hand a search on: `targets` to a publisher, and that one to a bin."""

MOST_KEY_BYTES: Final = 1 << 14

_PUBLISHER: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def checked_publisher(name: str) -> str:
    """*name*, if a publisher may have it. Raises `InputError`."""
    if _PUBLISHER.fullmatch(name) is None or name in {"root", "targets", "snapshot", "timestamp"}:
        raise InputError(
            f"a publisher's name is up to 63 small letters, digits and hyphens, not {name[:80]!r}"
        )
    return name


def target_of(publisher: str, token: str) -> str:
    """The path of the entry of *token* among the targets of *publisher*'s role."""
    return f"{publisher}/{token}"


def publisher_of(role: str) -> str:
    """The publisher of the list *role*: its own role or one of its bins."""
    return role.partition(".")[0]


def signer_of(pem: bytes) -> CryptoSigner:
    """The signer with the private Ed25519 key *pem*. Raises `InputError`."""
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise InputError(f"this is no private key in PEM without a password: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError("the private key is not an Ed25519 key")
    return CryptoSigner(key)


def public_key_of(pem: bytes) -> SSlibKey:
    """The public Ed25519 key *pem*. Raises `InputError`."""
    try:
        key = load_pem_public_key(pem)
    except ValueError as error:
        raise InputError(f"this is no public key in PEM: {error}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError("the public key is not an Ed25519 key")
    return SSlibKey.from_crypto(key)


def new_key() -> tuple[bytes, bytes, str]:
    """A new private Ed25519 key and its public key, both in PEM, and its identifier."""
    key = Ed25519PrivateKey.generate()
    form = PublicFormat.SubjectPublicKeyInfo
    signer = CryptoSigner(key)
    public = key.public_key().public_bytes(Encoding.PEM, form)
    return signer.private_bytes, public, signer.public_key.keyid


def read_key(path: str) -> CryptoSigner:
    """The signer with the private key in the file at *path*. Raises `InputError`, `Unreadable`."""
    return signer_of(read_file(path, "the private key"))


def read_public_key(path: str) -> SSlibKey:
    """The public key in the file at *path*. Raises `InputError`, `Unreadable`."""
    return public_key_of(read_file(path, "the public key"))


def read_file(path: str, what: str, most: int = MOST_KEY_BYTES) -> bytes:
    """The content of the file at *path*, *most* bytes at most. Raises `Unreadable`."""
    try:
        with open(path, "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise Unreadable(f"{what} {path} cannot be read: {error.strerror or error}") from None
    if len(content) > most:
        raise Unreadable(f"{what} {path} has more than {most} bytes")
    return content
