"""Trusted signers of bundles: this home's own key, and public keys that a person has listed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bough.errors import InvalidInput, StoreError
from bough.events.bundle.bundle import signing_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNING_KEY = "signing.key"
TRUSTED = "keys/trusted"
"""Paths below the home folder: its own key, and the public keys of others, one `hex name` per line."""


def own_signing_key(home: Path) -> Ed25519PrivateKey:
    """Return the signing key of a home folder. Creates it if missing.

    Raises:
        StoreError: The key cannot be read or written.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        return signing_key(home / SIGNING_KEY)
    except OSError as error:
        raise StoreError(
            f"the signing key cannot be read or written: {error}", hint=f"check the permissions of {home}"
        ) from error


def read_known_keys(home: Path) -> list[bytes]:
    """Return the public key of a home folder, if it exists, and those in its file of trusted keys.

    Raises:
        InvalidInput: A line of the file is not a public key.
    """
    own = home / SIGNING_KEY
    keys = [signing_key(own).public_key().public_bytes_raw()] if own.exists() else []
    trusted = home / TRUSTED
    lines = trusted.read_text("utf-8").splitlines() if trusted.exists() else []
    return [*keys, *(parse_public_key(line.split()[0]) for line in lines if line.strip() and not line.startswith("#"))]


def parse_public_key(text: str) -> bytes:
    """Parse a public key in hexadecimal.

    Raises:
        InvalidInput: The text is not a public key.
    """
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InvalidInput(
            f"{text[:80]!r} is not a public key", hint="64 hexadecimal digits, as in a bundle's last line"
        )
    return key
