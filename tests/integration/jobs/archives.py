"""Archives of working directories, good ones and tricky ones."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping


def an_archive(files: Mapping[str, bytes], links: Mapping[str, str] | None = None) -> bytes:
    """Return a tar.gz of these files, and of symbolic links by name to their target."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type = tarfile.SYMTYPE
            member.linkname = target
            archive.addfile(member)
    return packed.getvalue()


def a_device() -> bytes:
    """Return a tar.gz that holds a device node."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("null")
        member.type = tarfile.CHRTYPE
        archive.addfile(member)
    return packed.getvalue()
