"""Keeps the files a job named as its artifacts, at the end of the attempt.

Only regular files below the working directory: a link could name any file of this machine, and
what reads artifacts later is the control plane. A file is linked, not copied, where it can be.
"""

from __future__ import annotations

import os

FILE_LIMIT = 10_000
"""Most artifacts of one attempt; a pattern that matches more names a tree, not a result."""


def collect(work: str, target: str, patterns: list[str], max_bytes: int) -> str:
    """Link or copy what matches into target and return a sentence on what was left out, or "".

    Args:
        patterns: Relative paths with `*`, `?`, `[…]` in a part and `**` for any parts; one that
            names a folder means everything below it.
    """
    wanted = [_parts(pattern) for pattern in patterns]
    left, kept, skipped = max_bytes, 0, 0
    for folder, names, files in os.walk(work):
        names.sort()
        for name in sorted(files):
            path = os.path.join(folder, name)
            relative = path[len(work) + 1 :]
            if not any(matches(pattern, relative.split("/")) for pattern in wanted):
                continue
            if os.path.islink(path) or not os.path.isfile(path):
                skipped += 1
                continue
            size = os.lstat(path).st_size
            if size > left or kept >= FILE_LIMIT:
                skipped += 1
                continue
            left -= size
            kept += 1
            _keep(path, os.path.join(target, relative))
    if not skipped:
        return ""
    limits = f"links, files beyond {max_bytes} bytes in all or beyond {FILE_LIMIT} files"
    return f"{skipped} artifacts were left out ({limits})"


def matches(pattern: list[str], path: list[str]) -> bool:
    """Return whether a path, or a folder it lies in, matches a pattern part by part."""
    from fnmatch import fnmatchcase  # 5 ms, and only jobs with artifacts need it

    if not pattern:
        return True
    if pattern[0] == "**":
        return any(matches(pattern[1:], path[skip:]) for skip in range(len(path) + 1))
    if not path:
        return False
    return fnmatchcase(path[0], pattern[0]) and matches(pattern[1:], path[1:])


def _parts(pattern: str) -> list[str]:
    return [part for part in pattern.split("/") if part not in ("", ".")]


def _keep(path: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    try:
        os.link(path, target, follow_symlinks=False)
    except OSError:
        import shutil  # another file system, or one without links

        shutil.copyfile(path, target, follow_symlinks=False)
