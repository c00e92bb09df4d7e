"""The home folder: what lies where, the lock of the one control plane, the admin token."""

import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import IO


class HomeInUse(Exception):
    """Another control plane runs on this home."""


@dataclass(slots=True)
class Home:
    """The folder of one control plane; only its owner may look inside."""

    path: Path
    _lock: IO[str] | None = None

    @property
    def token_file(self) -> Path:
        """Return where the admin token lies (0600)."""
        return self.path / "admin-token"

    @property
    def address_file(self) -> Path:
        """Return where the address of the running control plane is written."""
        return self.path / "address"

    @property
    def workspaces(self) -> Path:
        """Return the folder of snapshotted working directories, named by digest."""
        return self.path / "workspaces"

    @property
    def decisions(self) -> Path:
        """Return the folder of recorded decisions."""
        return self.path / "decisions"

    @property
    def keys(self) -> Path:
        """Return the folder of sealing keys."""
        return self.path / "keys"

    def open(self) -> None:
        """Make the folder and take its lock for the life of this process.

        Raises:
            HomeInUse: If another control plane holds it.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.workspaces.mkdir(mode=0o700, exist_ok=True)
        lock = (self.path / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise HomeInUse(
                f"A control plane (process {holder}) already runs on {self.path}. Stop it, or "
                "set GPUPLANE_HOME to another folder."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    def close(self) -> None:
        """Give the lock back."""
        self.address_file.unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def ensure_token(self) -> str:
        """Return the admin token, made at the first start with 256 bits of chance."""
        if self.token_file.exists():
            return self.token_file.read_text(encoding="utf-8").strip()
        token = "gp_" + secrets.token_urlsafe(32)
        temporary = self.token_file.with_suffix(".new")
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.token_file)
        return token

    def write_address(self, url: str) -> None:
        """Write where the control plane listens, for clients on this machine."""
        temporary = self.address_file.with_suffix(".new")
        temporary.write_text(url + "\n", encoding="utf-8")
        temporary.replace(self.address_file)
