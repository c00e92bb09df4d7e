"""One home at a time gives out this machine's GPUs: a lock that outlives the control plane.

The home that owns the GPUs is written in one file; that somebody of that home lives is a shared
lock on another, held by its control plane and by each of its supervisors whose job has GPUs. A
second home takes the GPUs over only when nobody holds that lock. It keeps apart homes that see
the same lock folder: containers with a `/run/lock` of their own do not.
"""

import contextlib
import fcntl
import getpass
import hashlib
import json
import os
from pathlib import Path

_FOLDER = "gpuplane"
_MODE = 0o666
"""Other users' homes must be able to ask; what the files say is no secret."""


class GpuLock:
    """This home's claim on the machine's GPUs.

    Args:
        home: Whose claim it is.
        folder: Where the files lie; None for `/run/lock/gpuplane`, else `/tmp/gpuplane`.
    """

    def __init__(self, home: Path, folder: Path | None) -> None:
        self._home = str(home.resolve())
        self._key = hashlib.sha256(self._home.encode()).hexdigest()[:16]
        self._folder = folder or _default_folder()
        self._handle: int | None = None

    @property
    def handle(self) -> int | None:
        """A descriptor that keeps the claim alive in whoever inherits it, or None."""
        return self._handle

    def acquire(self) -> str:
        """Take the GPUs if nobody else has them; return who has them, or "" for this home.

        Cheap when held; asked again at every look, so that the next home gets them when free.
        """
        if self._handle is not None:
            return ""
        try:
            self._make_folder()
            with self._door():
                return self._take()
        except OSError as error:
            return f"the GPU lock {self._folder} cannot be used: {error.strerror}"

    def close(self) -> None:
        """Let go; jobs with GPUs keep the claim until they end."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _take(self) -> str:
        owner = self._read_owner()
        if owner and owner.get("key") != self._key:
            known = self._open(f"home-{owner.get('key')}")
            try:
                fcntl.flock(known, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return f"the home {owner.get('home')} of user {owner.get('user')} gives them out"
            finally:
                os.close(known)
        handle = self._open(f"home-{self._key}")
        fcntl.flock(handle, fcntl.LOCK_SH)
        self._write_owner()
        self._handle = handle
        return ""

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(PermissionError):
                self._folder.chmod(0o1777)

    @contextlib.contextmanager
    def _door(self):  # type: ignore[no-untyped-def]  # a generator whose type says nothing
        handle = self._open("door")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _open(self, name: str) -> int:
        path = self._folder / name
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            # Without O_CREAT first: the kernel refuses that on another user's file in /tmp.
            return os.open(path, flags)
        except FileNotFoundError:
            handle = os.open(path, flags | os.O_CREAT, _MODE)
            with contextlib.suppress(PermissionError):
                os.fchmod(handle, _MODE)
            return handle

    def _read_owner(self) -> dict[str, str]:
        handle = self._open("owner")
        try:
            value = json.loads(os.pread(handle, 65_536, 0) or b"{}")
        except ValueError:  # cut off by a crash; the claim itself is the lock
            return {}
        finally:
            os.close(handle)
        return value if isinstance(value, dict) else {}

    def _write_owner(self) -> None:
        owner = {"key": self._key, "home": self._home, "user": _user()}
        handle = self._open("owner")
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(owner).encode(), 0)
        finally:
            os.close(handle)


def _default_folder() -> Path:
    base = Path("/run/lock")
    return (base if os.access(base, os.W_OK) else Path("/tmp")) / _FOLDER


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
