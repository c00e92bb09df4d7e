"""Looks for new files in a folder and new objects in an S3-compatible bucket.

What is there at the first look is where a trigger begins, and fires nothing.
"""

import asyncio
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from gpuplane.domains.pipelines.documents.arrivals import Found, is_wanted, object_of
from gpuplane.domains.pipelines.steps import StepTools
from gpuplane.domains.pipelines.steps.calling import send
from gpuplane.domains.pipelines.steps.checks import is_allowed
from gpuplane.kit.clock import instant_to_text

MAX_OBJECTS = 10_000
"""Files or objects that one trigger remembers: it is for arrivals, not for archives."""
SETTLE_MS = 2_000
"""A file that changed just now may still be written."""
TIMEOUT_S = 20.0


class PollError(Exception):
    """A folder or bucket that cannot be looked at; the text is a sentence."""


def find_new(state: Any, found: list[Found]) -> tuple[list[Found], dict[str, str]]:
    """Return what was not there at the look before, and what to remember."""
    marks = {each.path: each.mark for each in found}
    if state is None:
        return [], marks
    return [each for each in found if state.get(each.path) != each.mark], marks


async def look_into_folder(
    part: Mapping[str, Any], roots: tuple[str, ...], now: int
) -> list[Found]:
    """Return the settled files of a folder; PollError if it may not or cannot be read."""
    return await asyncio.to_thread(_list_folder, part, roots, now)


def _list_folder(part: Mapping[str, Any], roots: tuple[str, ...], now: int) -> list[Found]:
    folder = Path(part["path"]).resolve()
    if not is_allowed(part["path"], roots):
        raise PollError(f"{folder} is not in a folder that the server lets triggers look into.")
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    continue
                if not fnmatch.fnmatchcase(entry.name, part.get("pattern", "*")):
                    continue
                stat = entry.stat(follow_symlinks=False)
                modified = stat.st_mtime_ns // 1_000_000
                if now - modified < SETTLE_MS:
                    continue
                mark = f"{stat.st_mtime_ns}-{stat.st_size}"
                text = instant_to_text(modified)
                found.append(Found(entry.name, entry.path, stat.st_size, text, mark))
                if len(found) > MAX_OBJECTS:
                    raise PollError(f"{folder} has more than {MAX_OBJECTS} files.")
    except OSError as error:
        raise PollError(f"{folder} cannot be read: {error.strerror}.") from error
    return sorted(found, key=lambda each: (each.modified_at, each.path))


async def look_into_bucket(
    part: Mapping[str, Any], keys: tuple[str, str] | None, tools: StepTools, now: int
) -> list[Found]:
    """Return the objects of a bucket under a prefix; PollError if it cannot be listed."""
    found: list[Found] = []
    token = ""
    while True:
        root = await _list_page(part, keys, tools, token, now)
        for item in root.iter():
            if item.tag.endswith("Contents") and is_wanted(part, _text(item, "Key")):
                found.append(_object(item, part))
        if len(found) > MAX_OBJECTS:
            raise PollError(f"The prefix has more than {MAX_OBJECTS} objects.")
        token = _text(root, "NextContinuationToken")
        if _text(root, "IsTruncated") != "true" or not token:
            return sorted(found, key=lambda each: (each.modified_at, each.path))


def _object(item: ElementTree.Element, part: Mapping[str, Any]) -> Found:
    return object_of(
        part["bucket"],
        _text(item, "Key"),
        int(_text(item, "Size") or 0),
        _text(item, "LastModified"),
        _text(item, "ETag"),
    )


def _text(parent: ElementTree.Element, name: str) -> str:
    for child in parent:
        if child.tag.rpartition("}")[2] == name:
            return child.text or ""
    return ""


async def _list_page(
    part: Mapping[str, Any],
    keys: tuple[str, str] | None,
    tools: StepTools,
    token: str,
    now: int,
) -> ElementTree.Element:
    query = {"list-type": "2", "prefix": part.get("prefix", "")}
    if token:
        query["continuation-token"] = token
    pairs = sorted((quote(key, safe=""), quote(value, safe="")) for key, value in query.items())
    text = "&".join(f"{key}={value}" for key, value in pairs)
    path = f"/{part['bucket']}"
    url = f"{part['endpoint'].rstrip('/')}{path}?{text}"
    headers = sign_v4(url, keys, part.get("region", "us-east-1"), now) if keys else {}
    try:
        answered = await send(tools, "GET", url, headers, None, TIMEOUT_S)
    except Exception as error:  # whatever is wrong is told to the pipeline's owner
        raise PollError(f"The bucket cannot be listed: {error}"[:300]) from error
    if answered.status != 200:
        raise PollError(f"The bucket cannot be listed: the answer was {answered.status}.")
    try:
        return ElementTree.fromstring(answered.body)  # expat refuses bombs itself
    except ElementTree.ParseError as error:
        raise PollError("The bucket's answer is no list of objects.") from error


def sign_v4(url: str, keys: tuple[str, str], region: str, now: int) -> dict[str, str]:
    """Return the headers that sign a GET of S3.

    Source:
        AWS Signature Version 4, "Signing and authenticating REST requests".
    """
    parts = urlsplit(url)
    compact = instant_to_text(now)[:19].replace("-", "").replace(":", "") + "Z"
    day, empty = compact[:8], hashlib.sha256(b"").hexdigest()
    signed = "host;x-amz-content-sha256;x-amz-date"
    canonical = (
        f"GET\n{parts.path}\n{parts.query}\nhost:{parts.netloc}\n"
        f"x-amz-content-sha256:{empty}\nx-amz-date:{compact}\n\n{signed}\n{empty}"
    )
    scope = f"{day}/{region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{compact}\n{scope}\n{digest}"
    key = f"AWS4{keys[1]}".encode()
    for word in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    return {
        "x-amz-date": compact,
        "x-amz-content-sha256": empty,
        "Authorization": (
            f"AWS4-HMAC-SHA256 Credential={keys[0]}/{scope},SignedHeaders={signed},"
            f"Signature={signature}"
        ),
    }
