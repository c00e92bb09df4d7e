"""Seals secrets at rest: AES-256-GCM under a data key, which RSA-4096-OAEP-SHA256 wraps.

A sealed value is `GPS1`, the key id (16 bytes), the length of the wrapped data key (2 bytes), the
wrapped key, a nonce (12 bytes) and the ciphertext. Key id and context are authenticated, so a value
cannot be moved to another place or claimed for another key. Keys lie in one folder, 0600 each; the
newest (`current`) seals, every one opens.
"""

import os
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gpuplane.kit.errors import Unavailable

MAGIC = b"GPS1"
KEY_BITS = 4096
ID_BYTES = 16
NONCE_BYTES = 12
SEALS_PER_DATA_KEY = 2**20
"""Far below the 2**32 messages at which random nonces of one AES-GCM key become a risk."""
OPENED_KEPT = 1_024
"""Data keys kept unwrapped: opening by RSA takes 1.5 ms, by a kept key 0.02 ms."""
READY_TIMEOUT_S = 60.0
"""How long the first use waits for the key that a first start generates."""

_OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)


class SealBroken(Unavailable):
    """A sealed value cannot be opened: another place, a damaged value, or a key that is gone."""

    code = "secret_unreadable"


@dataclass(slots=True)
class _DataKey:
    key_id: str
    wrapped: bytes
    cipher: AESGCM
    seals: int = 0


class SealingKeys:
    """The keys of one home; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """Read the keys of a folder; without any, make the first in the background."""
        self.folder = folder
        self._lock = threading.RLock()
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._keys: dict[str, rsa.RSAPrivateKey] = {}
        self._current = ""
        self._sealing: _DataKey | None = None
        self._opened: OrderedDict[bytes, AESGCM] = OrderedDict()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._reload()
        if self._current:
            self._ready.set()
        else:
            threading.Thread(target=self._make_first, name="sealing-key", daemon=True).start()

    @property
    def is_ready(self) -> bool:
        """Return whether a key is there."""
        return self._ready.is_set() and self._failure is None

    @property
    def current_id(self) -> str:
        """Return the id of the key that seals."""
        self._wait()
        return self._current

    def key_ids(self) -> list[str]:
        """Return the ids of all keys that can open."""
        self._wait()
        return sorted(self._keys)

    def seal(self, plain: bytes, context: str) -> bytes:
        """Return a value that opens only with these keys and the same context.

        Args:
            plain: What to seal.
            context: Where it belongs, such as `secrets/<id>/3`; stored nowhere.
        """
        self._wait()
        with self._lock:
            data_key = self._sealing
            if (
                data_key is None
                or data_key.key_id != self._current
                or data_key.seals >= SEALS_PER_DATA_KEY
            ):
                data_key = self._sealing = self._new_data_key()
            data_key.seals += 1
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = data_key.cipher.encrypt(nonce, plain, _bound(data_key.key_id, context))
        length = len(data_key.wrapped).to_bytes(2, "big")
        head = MAGIC + data_key.key_id.encode() + length
        return head + data_key.wrapped + nonce + sealed

    def open(self, sealed: bytes, context: str) -> bytes:
        """Return what was sealed.

        Raises:
            SealBroken: If it was sealed for another context, is damaged, or its key is gone.
        """
        self._wait()
        key_id, wrapped, nonce, rest = _parts(sealed)
        try:
            return self._cipher(key_id, wrapped).decrypt(nonce, rest, _bound(key_id, context))
        except (InvalidTag, ValueError) as error:
            raise _broken() from error

    def rewrap(self, sealed: bytes, context: str) -> bytes:
        """Return the value sealed by the current key; the same bytes if it already is."""
        key_id, _, _, _ = _parts(sealed)
        if key_id == self.current_id:
            return sealed
        return self.seal(self.open(sealed, context), context)

    def refresh(self) -> None:
        """Read the folder again: another process may have rotated."""
        self._wait()
        self._reload()

    def rotate(self) -> str:
        """Make a new key that seals from now on, and return its id; takes seconds."""
        self._wait()
        key_id = self._generate()
        self._reload()
        return key_id

    def retire(self, key_id: str) -> None:
        """Delete a key; what it sealed and nobody rewrapped is lost.

        Raises:
            ValueError: If it is the key that seals.
        """
        with self._lock:
            if key_id == self.current_id:
                raise ValueError("the current key cannot be retired")
            (self.folder / f"{key_id}.pem").unlink(missing_ok=True)
            self._keys.pop(key_id, None)
            self._opened.clear()

    def _cipher(self, key_id: str, wrapped: bytes) -> AESGCM:
        with self._lock:
            known = self._opened.get(wrapped)
            if known is not None and key_id in self._keys:
                self._opened.move_to_end(wrapped)
                return known
            if key_id not in self._keys:  # another process may have rotated
                self._reload()
            key = self._keys.get(key_id)
        if key is None:
            raise _broken()
        cipher = AESGCM(key.decrypt(wrapped, _OAEP))
        with self._lock:
            self._opened[wrapped] = cipher
            while len(self._opened) > OPENED_KEPT:
                self._opened.popitem(last=False)
        return cipher

    def _new_data_key(self) -> _DataKey:
        plain = AESGCM.generate_key(256)
        wrapped = self._keys[self._current].public_key().encrypt(plain, _OAEP)
        return _DataKey(self._current, wrapped, AESGCM(plain))

    def _make_first(self) -> None:
        try:
            self._generate()
            self._reload()
        except BaseException as error:  # noqa: BLE001 - handed to whoever needs the key
            self._failure = error
        finally:
            self._ready.set()

    def _generate(self) -> str:
        key_id = secrets.token_hex(ID_BYTES // 2)
        key = rsa.generate_private_key(65_537, KEY_BITS)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _write_private(self.folder / f"{key_id}.pem", pem)
        _write_private(self.folder / "current", key_id.encode())
        return key_id

    def _reload(self) -> None:
        with self._lock:
            for path in sorted(self.folder.glob("*.pem")):
                if path.stem not in self._keys:
                    key = _read_key(path)
                    if key is not None:
                        self._keys[path.stem] = key
            mark = self.folder / "current"
            name = mark.read_text(encoding="ascii").strip() if mark.exists() else ""
            self._current = name if name in self._keys else ""

    def _wait(self) -> None:
        if not self._ready.wait(READY_TIMEOUT_S) or self._failure is not None:
            raise Unavailable(
                "The sealing key of this installation could not be made.",
                code="sealing_unavailable",
                fix="Check that the folder `keys` in the home is writable, then restart.",
                retry_after_s=5,
            ) from self._failure


def _read_key(path: Path) -> rsa.RSAPrivateKey | None:
    """Return the key of a file, None if it is of another kind.

    That its numbers are primes is not proved again, which takes a third of a second: we made them.
    A damaged file is found by the key opening what it closed.

    Raises:
        ValueError: If the file is damaged.
    """
    key = serialization.load_pem_private_key(
        path.read_bytes(), None, unsafe_skip_rsa_key_validation=True
    )
    if not isinstance(key, rsa.RSAPrivateKey):
        return None
    probe = secrets.token_bytes(32)
    if key.decrypt(key.public_key().encrypt(probe, _OAEP), _OAEP) != probe:
        raise ValueError(f"{path} is damaged: it does not open what it closed")
    return key


def _bound(key_id: str, context: str) -> bytes:
    return MAGIC + key_id.encode() + b"\x00" + context.encode()


def _parts(sealed: bytes) -> tuple[str, bytes, bytes, bytes]:
    start = len(MAGIC) + ID_BYTES
    if sealed[: len(MAGIC)] != MAGIC or len(sealed) < start + 2:
        raise _broken()
    length = int.from_bytes(sealed[start : start + 2], "big")
    wrapped_end = start + 2 + length
    nonce_end = wrapped_end + NONCE_BYTES
    if len(sealed) < nonce_end:
        raise _broken()
    key_id = sealed[len(MAGIC) : start].decode("ascii", "replace")
    wrapped = sealed[start + 2 : wrapped_end]
    return key_id, wrapped, sealed[wrapped_end:nonce_end], sealed[nonce_end:]


def _broken() -> SealBroken:
    return SealBroken(
        "A sealed value cannot be opened with the keys of this installation.",
        fix="Restore the folder `keys` that belongs to this database.",
    )


def _write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)
    draft.replace(path)
