"""What survives a killed control plane: attempts, tombstones and steps of the clock.

Owns one small SQLite file. Every record is committed before the verb that made it returns; a
commit does not wait for the disk, because the only loss it must survive is that of the process
(after a power cut the simulated nodes have lost their workloads like real ones).
"""

import logging
import sqlite3
import threading
from pathlib import Path

import msgspec

from gpuplane.backends.interface import BackendError
from gpuplane.backends.simulated.cutting import Cut
from gpuplane.backends.simulated.timeline import AttemptRecord
from gpuplane.core.reasons import Word
from gpuplane.kit.failpoints import failpoint

SCHEMA_VERSION = 1
WRITES_PER_FOLD = 2000
"""Writes after which the write-ahead log, by then a few megabytes, is moved into the file."""
TOMBSTONE_DAYS = 30
"""A start order that arrives later than this is no longer refused; orders live for minutes."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS attempts (
    attempt_id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, record BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tombstones (
    attempt_id TEXT PRIMARY KEY, at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cuts (
    gpu_id TEXT PRIMARY KEY, record BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
    at_ms INTEGER NOT NULL, offset_ms INTEGER NOT NULL
) STRICT;
"""

log = logging.getLogger("gpuplane.simulated")

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AttemptRecord)
_cut_decoder = msgspec.json.Decoder(Cut)


class Journal:
    """The state file of one simulated cluster; used from one thread.

    Raises:
        BackendError: If the file cannot be opened, or belongs to another fleet or version.
    """

    def __init__(self, path: Path, fleet_name: str, born_ms: int) -> None:
        self._path = path
        self._writes = 0
        self._folding: threading.Thread | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = _connect(path)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA wal_autocheckpoint = 0")
            self._db.executescript(_SCHEMA)
            self._about = {
                "schema": str(SCHEMA_VERSION),
                "fleet": fleet_name,
                "born_ms": str(born_ms),
            }
            self._claim()
        except (OSError, sqlite3.Error) as error:
            raise BackendError(
                Word.START_FAILED, f"the state file {path} of the fleet cannot be used: {error}"
            ) from error

    def _claim(self) -> None:
        """Write what the file is about, or check it against what it was made for."""
        for name, value in self._about.items():
            self._db.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (name, value))
        kept = dict(self._db.execute("SELECT name, value FROM about"))
        for name in ("schema", "fleet"):
            if kept[name] != self._about[name]:
                self._db.close()
                raise BackendError(
                    Word.START_FAILED,
                    f"the state file {self._path} has {name} {kept[name]}, not"
                    f" {self._about[name]}; give the fleet a state file of its own",
                )
        self._about = kept

    @property
    def born_ms(self) -> int:
        """Return the instant of fleet time 0."""
        return int(self._about["born_ms"])

    def load_last_ms(self) -> int:
        """Return the latest fleet time at which anything happened."""
        (found,) = self._db.execute(
            "SELECT max(at_ms) FROM (SELECT at_ms FROM attempts UNION ALL"
            " SELECT CAST(value AS INTEGER) FROM about WHERE name = 'last_ms')"
        ).fetchone()
        return int(found or 0)

    def load_steps(self) -> list[tuple[int, int]]:
        """Return the recorded steps of the wall clock, in order."""
        return list(self._db.execute("SELECT at_ms, offset_ms FROM steps ORDER BY rowid"))

    def load_attempts(self, now_ms: int) -> list[AttemptRecord]:
        """Return every attempt that was not forgotten.

        One that cannot be read is set aside with an alarm: it is forgotten, so that it can
        neither stop the others nor run a second time.
        """
        found = []
        rows = self._db.execute("SELECT attempt_id, record FROM attempts ORDER BY attempt_id")
        for attempt_id, blob in rows.fetchall():
            try:
                found.append(_decoder.decode(blob))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                log.error("attempt %s of %s cannot be read: %s", attempt_id, self._path, error)
                self.store_tombstone(attempt_id, now_ms)
                self.delete_attempt(attempt_id)
        return found

    def has_tombstone(self, attempt_id: str) -> bool:
        """Return whether this attempt was forgotten and may never start again."""
        found = self._db.execute("SELECT 1 FROM tombstones WHERE attempt_id = ?", (attempt_id,))
        return found.fetchone() is not None

    def store_attempt(self, record: AttemptRecord, at_ms: int) -> None:
        """Write the attempt, or replace what was known of it, as of a fleet time."""
        failpoint("simulated.store_attempt")
        self._write(
            "INSERT INTO attempts VALUES (?, ?, ?) ON CONFLICT (attempt_id)"
            " DO UPDATE SET at_ms = excluded.at_ms, record = excluded.record",
            (record.attempt_id, at_ms, _encoder.encode(record)),
        )
        failpoint("simulated.stored_attempt")

    def store_tombstone(self, attempt_id: str, now_ms: int) -> None:
        """Forbid this attempt to start for ever."""
        failpoint("simulated.store_tombstone")
        self._write("INSERT OR REPLACE INTO tombstones VALUES (?, ?)", (attempt_id, now_ms))

    def delete_attempt(self, attempt_id: str) -> None:
        """Drop the record of an attempt; its tombstone is written before."""
        failpoint("simulated.delete_attempt")
        self._write("DELETE FROM attempts WHERE attempt_id = ?", (attempt_id,))

    def store_cut(self, cut: Cut) -> None:
        """Write how a GPU is cut, in place of what was known of it."""
        failpoint("simulated.store_cut")
        record = _encoder.encode(cut)
        self._write("INSERT OR REPLACE INTO cuts VALUES (?, ?)", (cut.gpu_id, record))
        failpoint("simulated.stored_cut")

    def load_cuts(self) -> list[Cut]:
        """Return every GPU that was cut; one that cannot be read is as the fleet file says."""
        found = []
        for gpu_id, blob in self._db.execute("SELECT gpu_id, record FROM cuts ORDER BY gpu_id"):
            try:
                found.append(_cut_decoder.decode(blob))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                log.error("the cut of %s in %s cannot be read: %s", gpu_id, self._path, error)
        return found

    def delete_old_tombstones(self, now_ms: int) -> None:
        """Drop tombstones older than TOMBSTONE_DAYS."""
        self._write(
            "DELETE FROM tombstones WHERE at_ms < ?", (now_ms - TOMBSTONE_DAYS * 86_400_000,)
        )

    def note_step(self, at_ms: int, offset_ms: int) -> None:
        """Write that the wall clock was stepped."""
        self._note("INSERT INTO steps VALUES (?, ?)", (at_ms, offset_ms))

    def note_last_ms(self, at_ms: int) -> None:
        """Write the fleet time at which something happened; time never goes back behind it."""
        self._note("INSERT OR REPLACE INTO about VALUES ('last_ms', ?)", (str(at_ms),))

    def close(self) -> None:
        """Close the file."""
        if self._folding is not None:
            self._folding.join()
        self._db.close()

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise BackendError(
                Word.START_FAILED, f"the state file {self._path} cannot be written: {error}"
            ) from error
        self._writes += 1
        if self._writes >= WRITES_PER_FOLD and not (self._folding and self._folding.is_alive()):
            self._writes = 0
            self._folding = threading.Thread(target=_fold, args=(self._path,), daemon=True)
            self._folding.start()

    def _note(self, statement: str, values: tuple[object, ...]) -> None:
        """Write what only a clock set back would ask for: a full disk must not blind us for it."""
        try:
            self._write(statement, values)
        except BackendError as error:
            log.warning("%s", error.message)


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA busy_timeout = 2000")
    return db


def _fold(path: Path) -> None:
    """Move the write-ahead log into the file: it waits for the disk, so on a thread of its own."""
    try:
        db = _connect(path)
        try:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        finally:
            db.close()
    except sqlite3.Error as error:
        log.warning("the state file %s grows, its log cannot be folded in: %s", path, error)
