"""Where the state of a cluster lies: sealed, one folder a cluster, one command at a time.

Owns that state is never lost and never lies open longer than a command runs. A command works in
the folder `work` (0700). When it is over the state there is sealed, atomically, and `work` wiped;
when this process dies before that, `work` stays, and whoever opens the vault next takes the state
from it, which cannot be before the binary has ended too: it holds the lock as well.

Files: `lock`, `cluster.json` (the specification as applied, no secrets), `state.sealed` and the one
before it, `plan.sealed` with `plan.json` (what it would do), `terraform.lock.hcl` (the digests of
providers), `data` (providers), `unrecorded.json` (what was made and is in no state), and during a
command `work`.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuplane.kit.failpoints import failpoint
from gpuplane.kit.sealing import SealBroken, SealingKeys
from gpuplane.provisioning.binaries import STDOUT
from gpuplane.provisioning.errors import ProvisioningError, Reason
from gpuplane.provisioning.unrecorded import list_unrecorded

STATE, BACKUP, ERRORED = "terraform.tfstate", "terraform.tfstate.backup", "errored.tfstate"
PLAN = "plan.out"
PROVIDER_LOCK = ".terraform.lock.hcl"
FOLDER = "provisioning"
"""Of a home: one folder a cluster lies in it."""
_SEALED_AS = {"state.sealed": "state", "state.previous.sealed": "state", "plan.sealed": "plan"}
"""What a sealed file is bound to; every other is one that could not be read."""


@dataclass(frozen=True, slots=True)
class Vault:
    """The folder of one cluster.

    Args:
        folder: Its own.
        name: Of the cluster; what is sealed opens under this name alone.
        keys: Of the home.
    """

    folder: Path
    name: str
    keys: SealingKeys

    @property
    def work(self) -> Path:
        """Return where a command works."""
        return self.folder / "work"

    @property
    def exists(self) -> bool:
        """Return whether anything was ever kept or left here."""
        return any(
            (self.folder / name).exists() for name in ("state.sealed", "plan.sealed", "work")
        )

    @contextmanager
    def open(self) -> Iterator[int]:
        """Hold the vault with the state laid out in `work`; yields the lock's descriptor.

        Raises:
            ProvisioningError: If another command, or a binary that one left behind, holds it.
        """
        with self._held() as lock:
            self._take_what_was_left()
            self.work.mkdir(mode=0o700)
            state = self._opened("state.sealed", "state")
            if state is not None:
                write_private(self.work / STATE, state)
            failpoint("provisioning:laid-out")
            if (self.folder / "terraform.lock.hcl").exists():
                shutil.copyfile(self.folder / "terraform.lock.hcl", self.work / PROVIDER_LOCK)
            try:
                yield lock
            finally:
                # The state is sealed whatever happened, an interrupt included. Should sealing
                # fail, `work` is left as it is for the next time.
                self._keep()

    def state(self) -> dict[str, Any] | None:
        """Return the state, None if there is none; only while the vault is held, or for looking."""
        text = self._opened("state.sealed", "state")
        return None if text is None else _state_of(text)

    def put_plan(self, plan: bytes, told: dict[str, Any]) -> None:
        """Keep a plan: sealed, and beside it what it would do."""
        self.drop_plan()
        self._seal("plan.sealed", "plan", plan)
        write_private(self.folder / "plan.json", (json.dumps(told, indent=1) + "\n").encode())

    def plan(self) -> tuple[bytes, dict[str, Any]] | None:
        """Return the plan that is kept and what it would do."""
        plan = self._opened("plan.sealed", "plan")
        told = self.folder / "plan.json"
        return None if plan is None or not told.exists() else (plan, json.loads(told.read_bytes()))

    def drop_plan(self) -> None:
        """Forget the plan."""
        (self.folder / "plan.json").unlink(missing_ok=True)
        (self.folder / "plan.sealed").unlink(missing_ok=True)

    def put_document(self, document: dict[str, Any]) -> None:
        """Keep the specification that was applied."""
        text = json.dumps(document, indent=1) + "\n"
        write_private(self.folder / "cluster.json", text.encode())

    def document(self) -> dict[str, Any] | None:
        """Return the specification that was applied last."""
        path = self.folder / "cluster.json"
        found: dict[str, Any] | None = json.loads(path.read_bytes()) if path.exists() else None
        return found

    def unrecorded(self) -> dict[str, str]:
        """Return what was made and is in no state, the cloud's id by address."""
        path = self.folder / "unrecorded.json"
        found: dict[str, str] = json.loads(path.read_bytes()) if path.exists() else {}
        return found

    def rewrap(self) -> int:
        """Seal by the current key what an older one sealed; return how many files that were.

        Raises:
            ProvisioningError: If a command, or a binary that one left behind, holds it.
        """
        with self._held():
            return self._rewrap()

    def remove(self) -> None:
        """Remove the folder of a cluster that is gone; while the vault is held."""
        shutil.rmtree(self.folder)

    @contextmanager
    def _held(self) -> Iterator[int]:
        while True:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self.folder / "lock"
            with contextlib.closing(_Lock(path)) as lock:
                if not lock.take():
                    raise ProvisioningError(
                        Reason.BUSY,
                        f"Another command works on {self.name}, or what it started still runs.",
                        "Wait for its end; nothing was changed here.",
                    )
                if lock.is_current(path):  # else the folder was removed meanwhile
                    yield lock.number
                    return

    def _take_what_was_left(self) -> None:
        """Seal what a command left that never came to its end, and wipe its folder."""
        if self.work.exists():
            self._keep()

    def _keep(self) -> None:
        """Seal the newest whole state of `work`, and wipe it.

        Raises:
            ProvisioningError: If a state there cannot be read and none can stand for it.
        """
        if not self.folder.exists():  # the cluster is gone, and its folder with it
            return
        sealed = self._opened("state.sealed", "state")
        best = sealed
        for name in (BACKUP, STATE, ERRORED):
            path = self.work / name
            text = path.read_bytes() if path.exists() else b""
            if not text.strip():
                continue
            if _state_of(text) is None or not _may_follow(text, sealed):
                # Cut off in the middle, or of something else: kept for a person to look at.
                self._seal(f"{name}.{secrets.token_hex(4)}.unread.sealed", "unread", text)
            elif best is None or _serial(text) >= _serial(best):
                best = text
        if best is not None and best != sealed:
            if sealed is not None:
                self._seal("state.previous.sealed", "state", sealed)
            failpoint("provisioning:previous-kept")
            self._seal("state.sealed", "state", best)
        failpoint("provisioning:sealed")
        self.keys.refresh()  # they may have been rotated while the command ran
        self._rewrap()
        self._note_unrecorded(best)
        if (self.work / PROVIDER_LOCK).exists():
            write_private(
                self.folder / "terraform.lock.hcl", (self.work / PROVIDER_LOCK).read_bytes()
            )
        if self.work.exists():
            shutil.rmtree(self.work)

    def _note_unrecorded(self, state: bytes | None) -> None:
        path, output = self.folder / "unrecorded.json", self.work / STDOUT
        said = output.read_bytes() if output.exists() else b""
        known = None if state is None else _state_of(state)
        missing = list_unrecorded(said, self.unrecorded(), known)
        if missing:
            write_private(path, (json.dumps(missing, indent=1) + "\n").encode())
        else:
            path.unlink(missing_ok=True)

    def _seal(self, file: str, what: str, plain: bytes) -> None:
        write_private(self.folder / file, self.keys.seal(plain, self._context(what)))

    def _rewrap(self) -> int:
        changed = 0
        for path in sorted(self.folder.glob("*.sealed")):
            sealed = path.read_bytes()
            try:
                fresh = self.keys.rewrap(sealed, self._context(_SEALED_AS.get(path.name, "unread")))
            except SealBroken:
                continue  # its key is gone: whoever needs it is told so when it is opened
            if fresh != sealed:
                write_private(path, fresh)
                changed += 1
        return changed

    def _opened(self, file: str, what: str) -> bytes | None:
        path = self.folder / file
        return self.keys.open(path.read_bytes(), self._context(what)) if path.exists() else None

    def _context(self, what: str) -> str:
        return f"provisioning/{self.name}/{what}"


def rewrap_vaults(home: Path, keys: SealingKeys) -> int:
    """Seal anew what lies under older keys of every cluster made from a home; return how much.

    One that a command holds just now is left to it: it does the same at its end.
    """
    changed = 0
    for lock in sorted((home / FOLDER).glob("*/lock")):
        vault = Vault(lock.parent, lock.parent.name, keys)
        with contextlib.suppress(ProvisioningError):
            changed += vault.rewrap()
    return changed


class _Lock:
    """A file lock that descends to whoever inherits its descriptor."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> bool:
        """Take it, or return False at once."""
        try:
            fcntl.flock(self.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_current(self, path: Path) -> bool:
        """Return whether the file that is locked is still the one of that name."""
        try:
            return os.fstat(self.number).st_ino == path.stat().st_ino
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Give it back, unless somebody inherited it."""
        os.close(self.number)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner reads, whole or not at all, there after a power cut."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _state_of(text: bytes) -> dict[str, Any] | None:
    """Return a state, None where the text is none or only its beginning."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_state = isinstance(found, dict) and isinstance(found.get("serial"), int)
    return found if is_state and isinstance(found.get("lineage"), str) else None


def _serial(text: bytes) -> int:
    state = _state_of(text)
    return -1 if state is None else int(state["serial"])


def _may_follow(text: bytes, sealed: bytes | None) -> bool:
    state, before = _state_of(text), None if sealed is None else _state_of(sealed)
    return state is not None and (before is None or state["lineage"] == before["lineage"])
