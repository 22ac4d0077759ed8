"""Secrets of conversations, encrypted in side tables: AES-256-GCM with a key of the operator.

The log contains only their names. A ciphertext is bound to its tenant, conversation and name, so a row that is moved
elsewhere cannot be decrypted.
"""

from __future__ import annotations

import hashlib
import os
import secrets as randomness
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from bough.conversation import State
from bough.conversation.fork.model_key import MODEL_KEY
from bough.errors import InvalidInput, Unavailable
from bough.events.model import StateChanged
from bough.events.record import ConversationRecord
from bough.events.side_tables import Tables
from bough.events.store import EventStore
from bough.guard import Secrets
from bough.server.auth.caller import LOCAL
from bough.server.auth.keys import SERVER
from bough.tasks.agents import Credentials
from bough.types import JsonObject

VARIABLE = "BOUGH_SECRET_KEY"
MIN_CHARACTERS = 32
_NONCE_BYTES = 12


class SecretBox:
    """Encrypts texts with the first of its keys, and decrypts with any of them.

    Raises:
        InvalidInput: A key is shorter than 32 characters.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        short = [key for key in keys if len(key) < MIN_CHARACTERS]
        if short or not keys:
            raise InvalidInput(
                f"{VARIABLE} needs at least {MIN_CHARACTERS} characters",
                hint="create one with `openssl rand -base64 48`",
            )
        self._keys = {_key_id(key): _derive_key(key) for key in keys}
        self.first = _key_id(keys[0])

    @classmethod
    def of(cls, home: Path, env: Mapping[str, str]) -> SecretBox:
        """Return a box with the keys in `BOUGH_SECRET_KEY`, separated by commas, or else with the one in the home.

        That one is in `<home>/secret.key`, which is created if missing.

        Raises:
            InvalidInput: A key is too short.
            Unavailable: The file can neither be read nor created.
        """
        if secret_key := env.get(VARIABLE):
            return cls([key.strip() for key in secret_key.split(",") if key.strip()])
        return cls([_read_or_create_key(home / "secret.key")])

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all keys."""
        return frozenset(self._keys)

    def derive_secrets(self, purpose: str, size_bytes: int) -> list[bytes]:
        """Return a secret for a purpose derived from each key, in the keys' order. Deterministic, never stored."""
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

        info = b"bough derived 1|" + purpose.encode()
        return [HKDFExpand(algorithm=SHA256(), length=size_bytes, info=info).derive(key) for key in self._keys.values()]

    def seal(self, context: str, text: str) -> tuple[str, bytes, bytes]:
        """Encrypt a text; return the id of the key, the nonce and the ciphertext.

        Args:
            context: Authenticated with the text: `open` needs the same context.
        """
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = randomness.token_bytes(_NONCE_BYTES)
        return self.first, nonce, AESGCM(self._keys[self.first]).encrypt(nonce, text.encode(), context.encode())

    def open(self, context: str, key_id: str, nonce: bytes, ciphertext: bytes) -> str:
        """Return a decrypted text.

        Raises:
            Unavailable: The key is missing, or the text was encrypted in another context.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if key_id not in self._keys:
            raise Unavailable("a secret was encrypted with a key that is missing", hint=f"add the key to {VARIABLE}")
        try:
            return AESGCM(self._keys[key_id]).decrypt(nonce, ciphertext, context.encode()).decode()
        except InvalidTag as error:
            raise Unavailable("a stored secret cannot be decrypted", hint="post the secret again") from error


class SealedSecrets:
    """The secrets of conversations in a store.

    Args:
        make_box: Called at the first use, so that a server without secrets needs no key.
    """

    def __init__(self, store: EventStore, make_box: Callable[[], SecretBox]) -> None:
        self._store = store
        self._make_box = make_box
        self._box: SecretBox | None = None

    @property
    def box(self) -> SecretBox:
        """The box, created at the first use."""
        if self._box is None:
            try:
                self._box = self._make_box()
            except ModuleNotFoundError as error:  # a worker without the server's packages
                message = f"encrypted secrets need the package {error.name}"
                raise Unavailable(message, hint="pip install 'bough[server]'") from error
        return self._box

    async def put(
        self,
        record: ConversationRecord,
        policies: JsonObject,
        values: Mapping[str, str],
        *,
        changes: JsonObject | None = None,
        expected_head: int | None = None,
    ) -> None:
        """Encrypt values for a conversation and record their names, in one transaction.

        Args:
            policies: The policies recorded in the log.
            changes: Other changes of the state, recorded in the same event.
            expected_head: The expected head of the log; None to accept any.

        Raises:
            InvalidInput: A name or a value is invalid for a secret.
            Conflict: The log has another head than the expected one.
        """
        check_values(values)
        sealed = {
            name: self.box.seal(_context(record.owner, str(record.id), name), value) for name, value in values.items()
        }
        new_names = [name for name in values if name != MODEL_KEY]
        names = sorted({*(policies.get("secrets") or ()), *new_names})
        holder_ids: dict[str, str] = {**(policies.get("sealed") or {}), **dict.fromkeys(values, str(record.id))}

        def write(tables: Tables) -> None:
            cid, now = tables.number(record.id), tables.now()
            for name, (key_id, nonce, ciphertext) in sealed.items():
                columns: dict[str, Any] = {"key_id": key_id, "nonce": nonce, "ciphertext": ciphertext}
                tables.run("server.seal", cid=cid, label=name, now=now, **columns)
            tables.run("server.add_sealing_key", key_id=self.box.first, now=now)
            all_changes = {**(changes or {}), "policies": {"secrets": names, "sealed": holder_ids}}
            tables.append(record.id, [StateChanged(changes=all_changes)], expected_head=expected_head)

        await self._store.transaction(SERVER, write)

    async def values(self, owner: str | None, policies: JsonObject) -> dict[str, str]:
        """Return the values of the secrets named in a conversation's log, including those of its source.

        Raises:
            Unavailable: A value cannot be decrypted.
        """
        holder_ids: Mapping[str, str] = policies.get("sealed") or {}
        if not holder_ids:
            return {}
        rows = await self._store.transaction(
            SERVER, lambda tables: _read_rows(tables, holder_ids), read_only=True, small=True
        )
        return {name: self.box.open(_context(owner, holder_ids[name], name), *row) for name, row in rows.items()}

    async def credentials(self, record: ConversationRecord, state: State) -> Credentials:
        """Return the secrets and the model key of a conversation, for a run of its task.

        Raises:
            Unavailable: A value cannot be decrypted.
        """
        values = await self.values(record.owner, state.policies)
        return Credentials(make_secrets(values), values.get(MODEL_KEY)) if values else Credentials()

    async def lacks_keys(self) -> bool:
        """Whether this store has encrypted secrets, and none of them was encrypted with a present key."""
        rows = await self._store.transaction(SERVER, lambda tables: tables.run("server.sealing_keys"), read_only=True)
        return bool(rows) and not {row[0] for row in rows} & self.box.ids

    async def require_keys(self) -> None:
        """Check that stored secrets can be decrypted.

        Raises:
            Unavailable: The store has secrets, and none of them was encrypted with a present key.
        """
        if await self.lacks_keys():
            raise Unavailable(
                "the secrets in this store were encrypted with keys that are missing",
                hint=f"put the key back into {VARIABLE} or secret.key of the home; if the key is lost, delete the rows "
                "of server_sealed and server_sealed_key, and post the secrets again",
            )


def make_secrets(values: Mapping[str, str]) -> Secrets:
    """Return the secrets of a conversation with these values, without the model key."""
    return Secrets({name: _constant(value) for name, value in values.items() if name != MODEL_KEY})


def check_values(values: Mapping[str, str]) -> None:
    """Check that values can be secrets.

    Raises:
        InvalidInput: A name is not a valid name of an environment variable, or a value is too short to be masked.
    """
    secrets = make_secrets(values)
    secrets.values()


def _constant(value: str) -> Callable[[], str]:
    return lambda: value


def _read_rows(tables: Tables, holder_ids: Mapping[str, str]) -> dict[str, tuple[str, bytes, bytes]]:
    """Return the key id, nonce and ciphertext of each secret, by name.

    Args:
        holder_ids: For each secret's name, the id of the conversation that the secret is stored with.
    """
    rows: dict[str, tuple[str, bytes, bytes]] = {}
    for conversation in set(holder_ids.values()):
        number = tables.number(UUID(conversation))
        for name, key_id, nonce, ciphertext in tables.run("server.sealed", cid=number):
            if holder_ids.get(name) == conversation:
                rows[name] = (key_id, bytes(nonce), bytes(ciphertext))
    return rows


def _context(owner: str | None, conversation: str, name: str) -> str:
    """Return the context that a secret is encrypted for."""
    return f"{owner or LOCAL}|{conversation}|{name}"


def _key_id(key: str) -> str:
    return hashlib.sha256(b"bough key id" + key.encode()).hexdigest()[:16]


def _derive_key(key: str) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"bough sealed secrets 1").derive(key.encode())


def _read_or_create_key(path: Path) -> str:
    """Return the key in a file, which is created if missing. Of two processes that create it at once, one wins."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(randomness.token_urlsafe(48))
    except FileExistsError:
        pass
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}", hint=f"set {VARIABLE}") from error
    try:
        return path.read_text("utf-8").strip()
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error.strerror}", hint=f"set {VARIABLE}") from error
