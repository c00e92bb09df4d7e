"""Gives back the files that a supervisor kept as artifacts. Reads below one folder only."""

import os
import stat
from pathlib import Path, PurePosixPath

from gpuplane.backends.interface import BackendError
from gpuplane.backends.local.folders import AttemptFolder

_REFUSED = "ArtifactNotFound"


def list_files(folder: AttemptFolder) -> tuple[tuple[str, int], ...]:
    """Return (relative path, bytes) of every artifact, in the order of the paths.

    With several ranks the path begins with the rank, since each may have made the same name.
    """
    roots = _roots(folder)
    found = []
    for prefix, root in roots.items():
        for parent, _, names in os.walk(root):
            for name in names:
                path = Path(parent) / name
                relative = path.relative_to(root).as_posix()
                found.append((prefix + relative, path.lstat().st_size))
    return tuple(sorted(found))


def read_file(folder: AttemptFolder, path: str, offset: int, limit_bytes: int) -> bytes:
    """Return a run of bytes of one artifact.

    Raises:
        BackendError: If there is no such artifact, or the path climbs out or goes over a link.
    """
    asked = PurePosixPath(path)
    if asked.is_absolute() or ".." in asked.parts or "\0" in path:
        raise BackendError(_REFUSED, f"{path!r} is not the path of an artifact")
    for prefix, root in _roots(folder).items():
        if path.startswith(prefix):
            try:
                return _read(root, PurePosixPath(path[len(prefix) :]), offset, limit_bytes)
            except OSError:
                break
    raise BackendError(_REFUSED, f"the attempt has no artifact {path!r}")


def _read(root: Path, path: PurePosixPath, offset: int, limit_bytes: int) -> bytes:
    """Open part by part without following links, so that none can be put in between."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(root, flags | os.O_DIRECTORY)
    try:
        for part in path.parts:
            inner = os.open(part, flags, dir_fd=handle)
            os.close(handle)
            handle = inner
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FileNotFoundError(str(path))
        return os.pread(handle, limit_bytes, offset)
    finally:
        os.close(handle)


def _roots(folder: AttemptFolder) -> dict[str, Path]:
    """Return the folder of each rank by the prefix that its paths get."""
    root = folder.path / "artifacts"
    ranks = folder.ranks()
    if len(ranks) == 1:
        return {"": root / str(ranks[0])}
    return {f"{rank}/": root / str(rank) for rank in ranks}
