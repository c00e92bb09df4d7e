"""Unpacks a job's working directory and lays its volumes into it.

The archive comes from a user: nothing of it may be written or point outside the folder it is
unpacked into. A link inside the archive is made last and checked when all is in place, so no
file is ever written through one.
"""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

MEMBER_LIMIT = 500_000
"""Far more files than a source tree has, far fewer than exhaust a disk's inodes."""
_COPY_BYTES = 1 << 20


class Refused(Exception):
    """An archive or mount that would reach outside, or is too large; the text says which."""


def prepare(
    archive: str | None, folders: list[str], mounts: list[tuple[str, str]], max_bytes: int
) -> str:
    """Fill each replica's folder and return a sentence on what is wrong, or "".

    Args:
        archive: A tar file, compressed or not; None for an empty folder.
        folders: One for each replica; they exist and are empty.
        mounts: (relative path, folder of the volume).
    """
    try:
        for folder in folders:
            if archive is not None:
                unpack(archive, folder, max_bytes)
            for path, target in mounts:
                mount(folder, path, target)
    except Refused as error:
        return str(error)
    return ""


def unpack(archive: str, folder: str, max_bytes: int) -> None:
    """Unpack an archive below a folder.

    Raises:
        Refused: If a member would lie or point outside, is a device, or the whole is too large.
        OSError: If the disk takes no more.
    """
    import tarfile  # 10 ms, and only jobs with a working directory need it

    left = max_bytes
    links: list[tuple[str, str]] = []
    try:
        with tarfile.open(archive) as tar:
            for count, member in enumerate(tar):
                if count >= MEMBER_LIMIT:
                    raise Refused(f"the workspace has more than {MEMBER_LIMIT} members")
                path = _inside(folder, member.name)
                if member.isdir():
                    _make_folders(folder, path)
                elif member.issym():
                    links.append((path, member.linkname))
                elif member.isreg():
                    left -= member.size
                    if left < 0:
                        raise Refused(f"the workspace unpacks to more than {max_bytes} bytes")
                    source = tar.extractfile(member)
                    assert source is not None
                    _make_folders(folder, os.path.dirname(path))
                    _write(path, source, 0o755 if member.mode & 0o100 else 0o644)
                elif member.islnk():
                    _copy_linked(folder, path, _inside(folder, member.linkname))
                else:
                    raise Refused(f"the workspace holds {member.name}, which is no file or folder")
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise Refused(f"the workspace is not a tar archive: {error}") from error
    _make_links(folder, links)


def mount(folder: str, path: str, target: str) -> None:
    """Lay a volume into a working directory as a link.

    Raises:
        Refused: If something is there already.
    """
    full = _inside(folder, path)
    if full == folder:
        raise Refused("a mount may not take the place of the working directory itself")
    _make_folders(folder, os.path.dirname(full))
    with contextlib.suppress(OSError):
        os.rmdir(full)  # an empty folder only marks the place
    try:
        os.symlink(target, full)
    except FileExistsError as error:
        raise Refused(f"the mount path {path} exists in the workspace") from error


def _inside(folder: str, name: str) -> str:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Refused(f"the workspace holds {name!r}, which lies outside of it")
    return os.path.normpath(os.path.join(folder, *parts))


def _make_folders(root: str, path: str) -> None:
    """Make folders below root; a link on the way is an archive that tries to climb out."""
    os.makedirs(path, mode=0o755, exist_ok=True)
    if os.path.realpath(path) != os.path.realpath(root) + path[len(root) :]:
        raise Refused(f"the workspace goes through the link {path[len(root) + 1 :]}")


def _write(path: str, source: IO[bytes], mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "wb") as target:
        while data := source.read(_COPY_BYTES):
            target.write(data)


def _copy_linked(root: str, path: str, original: str) -> None:
    """Copy what a hard link names: two names of one file would be one file to the job."""
    _make_folders(root, os.path.dirname(path))
    if not os.path.isfile(original):
        name = original[len(root) + 1 :]
        raise Refused(f"the workspace links to {name}, which it lacks")
    with open(original, "rb") as source:
        _write(path, source, os.stat(original).st_mode & 0o755)


def _make_links(root: str, links: list[tuple[str, str]]) -> None:
    for path, target in links:
        _make_folders(root, os.path.dirname(path))
        name = path[len(root) + 1 :]
        if os.path.isdir(path) and not os.path.islink(path):
            raise Refused(f"the workspace names {name} as a link and as a folder")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.symlink(target, path)
    real_root = os.path.realpath(root)
    for path, target in links:
        # Links may lead over links, so what counts is where they end, not how they are written.
        if os.path.commonpath([real_root, os.path.realpath(path)]) != real_root:
            for other, _ in links:
                os.unlink(other)
            raise Refused(
                f"the workspace's link {path[len(root) + 1 :]} -> {target} leads out of it"
            )
