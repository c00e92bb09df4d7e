"""HTTP of working directories: uploaded once as tar.gz, named by the digest of their bytes."""

import asyncio
import gzip
import hashlib
import os
import secrets
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Annotated

from fastapi import APIRouter, Query, Request

from gpuplane.db.calls import CallDep
from gpuplane.domains.jobs import service
from gpuplane.domains.jobs.endpoints.parts import WORKSPACE_BYTES, WorkspaceFolder
from gpuplane.domains.jobs.schemas import WorkspaceOut
from gpuplane.domains.jobs.schemas.values import Digest
from gpuplane.kit.access import Permission, accepts_upload, requires
from gpuplane.kit.errors import NotFound, TooLarge, Unprocessable

router = APIRouter()

CHUNK_BYTES = 1 << 20

_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.post("/workspaces", status_code=201, openapi_extra=_BODY)
@requires(Permission.JOB_WRITE)
@accepts_upload(WORKSPACE_BYTES)
async def upload_workspace(
    call: CallDep,
    request: Request,
    digest: Annotated[
        Digest | None, Query(description="What the sender computed; another one is refused.")
    ] = None,
) -> WorkspaceOut:
    """Take a working directory as tar.gz; the same bytes twice are kept once."""
    folder = call.port("workspaces", WorkspaceFolder)
    draft = folder.path / f".upload-{secrets.token_hex(8)}"
    try:
        found, size = await _receive(request, draft, folder.max_bytes)
        if digest is not None and digest != found:
            raise Unprocessable(
                "The bytes that arrived have another digest.",
                code="digest_mismatch",
                field="digest",
                fix="Send it again.",
            )
        await asyncio.to_thread(_check_archive, draft, folder)
        await asyncio.to_thread(os.replace, draft, folder.path / f"{found}.tar.gz")
    finally:
        draft.unlink(missing_ok=True)
    is_new = await call.database.write(
        "jobs.store_workspace",
        lambda s: service.store_workspace(s, call.principal, found, size, call.now),
    )
    return WorkspaceOut(digest=found, size_bytes=size, is_new=is_new)


@router.get("/workspaces/{digest}")
@requires(Permission.JOB_READ)
async def get_workspace(call: CallDep, digest: Digest) -> WorkspaceOut:
    """Say whether a working directory was uploaded, so that it need not be sent again."""
    folder = call.port("workspaces", WorkspaceFolder)
    path = folder.path / f"{digest}.tar.gz"
    known = await call.read(lambda s: service.has_workspace(s, call.principal, digest))
    if not known or not path.exists():
        raise NotFound(
            "No working directory of this digest was uploaded.",
            code="workspace_not_found",
            fix="Upload it with POST /api/v1/workspaces.",
        )
    return WorkspaceOut(digest=digest, size_bytes=path.stat().st_size, is_new=False)


async def _receive(request: Request, draft: Path, max_bytes: int) -> tuple[str, int]:
    """Write the stream to a file and return its digest and size."""
    digest, size = hashlib.sha256(), 0
    with draft.open("xb") as file:
        async for part in request.stream():
            size += len(part)
            if size > max_bytes:
                raise TooLarge(
                    f"A working directory may have {max_bytes} bytes packed.",
                    fix="Leave data out with an ignore file, and mount a volume for it.",
                )
            digest.update(part)
            await asyncio.to_thread(file.write, part)
        file.flush()
        await asyncio.to_thread(os.fsync, file.fileno())
    return digest.hexdigest(), size


def _check_archive(path: Path, folder: WorkspaceFolder) -> None:
    """Refuse what is no tar.gz, what leads out of its folder, and what would fill the disk."""
    total = count = 0
    try:
        with gzip.open(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as archive:
            for member in archive:
                count += 1
                total += member.size
                _check_member(member)
                if count > folder.max_files or total > folder.max_unpacked_bytes:
                    raise _too_large(folder)
            while part := unpacked.read(CHUNK_BYTES):  # to the end, for the checksum of gzip
                total += len(part)
                if total > folder.max_unpacked_bytes:
                    raise _too_large(folder)
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as error:
        raise Unprocessable(
            "This is no whole tar.gz archive.",
            code="workspace_invalid",
            fix="Pack the folder with tar and gzip.",
        ) from error


def _too_large(folder: WorkspaceFolder) -> TooLarge:
    return TooLarge(
        f"A working directory may hold {folder.max_files} files and {folder.max_unpacked_bytes} "
        "bytes unpacked.",
        fix="Leave data out with an ignore file, and mount a volume for it.",
    )


def _check_member(member: tarfile.TarInfo) -> None:
    if not (member.isfile() or member.isdir() or member.issym()):
        raise _unsafe(member, "is neither a file, a folder nor a symbolic link")
    if _leads_out(PurePosixPath(member.name)):
        raise _unsafe(member, "lies outside the working directory")
    if member.issym() and _leads_out(PurePosixPath(member.name).parent / member.linkname):
        raise _unsafe(member, "points out of the working directory")


def _leads_out(path: PurePosixPath) -> bool:
    depth = 0
    if path.is_absolute():
        return True
    for part in path.parts:
        depth += -1 if part == ".." else 0 if part == "." else 1
        if depth < 0:
            return True
    return False


def _unsafe(member: tarfile.TarInfo, why: str) -> Unprocessable:
    return Unprocessable(
        f"{member.name[:200]!r} {why}.",
        code="workspace_unsafe",
        fix="Leave it out with an ignore file.",
    )
