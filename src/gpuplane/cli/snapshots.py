"""Packs a working directory and sends it once: the same files make the same digest.

Names are sorted, times and owners are constants, so that two people with one source tree share
one upload. `.gpuplaneignore` in the folder leaves files out, in the notation of `.gitignore`.
"""

import gzip
import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gpuplane.cli.client import Client
from gpuplane.cli.errors import CliError, Exit
from gpuplane.cli.words import size_text

IGNORE_FILE = ".gpuplaneignore"
ALWAYS_IGNORED = (".git/", "__pycache__/", ".venv/", "*.pyc", ".mypy_cache/", ".pytest_cache/")
MAX_BYTES = 256 << 20
"""Packed; the server's default limit (GPUPLANE_HTTP_WORKSPACE_BYTES)."""
MAX_FILES = 200_000
MTIME = 315_532_800
"""1980-01-01: a constant, because a fresh checkout must not make another digest."""
_IN_MEMORY = 16 << 20
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A packed folder: its digest, size in bytes and count of files, and the open archive."""

    digest: str
    size_bytes: int
    file_count: int
    archive: "tempfile.SpooledTemporaryFile[bytes]"


def pack(folder: Path, *, max_bytes: int = MAX_BYTES) -> Snapshot:
    """Pack a folder as tar.gz.

    Raises:
        CliError: If it is too large, or a link points out of it.
    """
    archive = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - handed on
    try:
        count = _write(archive, folder, max_bytes)
        size = archive.tell()
        archive.seek(0)
        digest = hashlib.file_digest(archive, "sha256").hexdigest()
        archive.seek(0)
    except BaseException:
        archive.close()
        raise
    return Snapshot(digest, size, count, archive)


def _write(archive: IO[bytes], folder: Path, max_bytes: int) -> int:
    """Write the archive and return the count of its members."""
    count = 0
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=archive, compresslevel=_LEVEL, mtime=0) as z,
        tarfile.open(fileobj=z, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path, name in _members(folder):
            _add(tar, folder, path, name)
            count += 1
            if count > MAX_FILES or archive.tell() > max_bytes:
                raise _too_large(folder, count, max_bytes)
    if archive.tell() > max_bytes:
        raise _too_large(folder, count, max_bytes)
    return count


def upload(client: Client, folder: Path) -> Snapshot:
    """Pack a folder, send it unless the server has it, and return what was packed."""
    snapshot = pack(folder)
    with snapshot.archive:
        if client.find(f"/workspaces/{snapshot.digest}") is None:
            client.upload(
                "POST", "/workspaces", snapshot.archive, snapshot.size_bytes, digest=snapshot.digest
            )
    return snapshot


def _members(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield (path, name in the archive) of everything that is not ignored, sorted."""
    ignored = _patterns(folder)
    for root, folders, files in os.walk(folder):
        base = Path(root)
        prefix = "" if base == folder else base.relative_to(folder).as_posix() + "/"
        # A link to a folder is a link: it is packed, never followed.
        links = [name for name in folders if (base / name).is_symlink()]
        folders[:] = sorted(
            name
            for name in folders
            if name not in links and not ignored.match_file(f"{prefix}{name}/")
        )
        for name in folders:
            yield base / name, prefix + name
        for name in sorted([*files, *links]):
            if not ignored.match_file(prefix + name):
                yield base / name, prefix + name


def _patterns(folder: Path) -> Any:
    from pathspec import GitIgnoreSpec

    try:
        lines = (folder / IGNORE_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    return GitIgnoreSpec.from_lines([*ALWAYS_IGNORED, *lines])


def _add(tar: tarfile.TarFile, folder: Path, path: Path, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.mtime = MTIME
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        info.type = tarfile.SYMTYPE
        info.linkname = _target(folder, path)
        tar.addfile(info)
    elif stat.S_ISDIR(found.st_mode):
        info.type = tarfile.DIRTYPE
        info.mode = 0o755
        tar.addfile(info)
    elif stat.S_ISREG(found.st_mode):
        info.mode = 0o755 if found.st_mode & 0o100 else 0o644
        info.size = found.st_size
        with path.open("rb") as file:
            tar.addfile(info, file)


def _target(folder: Path, path: Path) -> str:
    target = os.readlink(path)  # noqa: PTH115 - the text of the link, not where it leads
    inside = os.path.normpath(path.parent.relative_to(folder) / target)
    if Path(target).is_absolute() or inside.startswith(".."):
        raise CliError(
            f"The link {path.relative_to(folder)} points out of the working directory.",
            fix=f"Name it in {IGNORE_FILE}, or copy what it points to.",
            field="--workdir",
            code=Exit.USAGE,
        )
    return target


def _too_large(folder: Path, count: int, max_bytes: int) -> CliError:
    return CliError(
        f"{folder} packs to more than {size_text(max_bytes)} or {MAX_FILES} files "
        f"({count} files seen).",
        fix=f"Leave data out with {IGNORE_FILE}, and mount a volume for it.",
        field="--workdir",
        code=Exit.USAGE,
    )
