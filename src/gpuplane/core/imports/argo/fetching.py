"""Artifacts that a step fetches from elsewhere before they are used: HTTP addresses and git."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuplane.core.imports.argo.expressions import Lookup, resolved
from gpuplane.core.imports.naming import name_of
from gpuplane.core.imports.reading import mapping, scalar
from gpuplane.core.imports.values import Const, Value, joined

CURL_IMAGE, GIT_IMAGE = "curlimages/curl:8.11.1", "alpine/git:2.47.2"
"""What fetches where containers run; on the machine itself its own curl and git do."""
_FILE = 'mkdir -p "$(dirname "$2")" && curl -fsSL --retry 3 -o "$2" "$1" || exit 1\n'
_OBJECT = """mkdir -p "$(dirname "$2")" && curl -fsSL --retry 3 --aws-sigv4 "aws:amz:$3:s3" \\
 --user "$ACCESS_KEY:$SECRET_KEY" -o "$2" "$1" || exit 1
"""
_UNPACK = """if tar -tf "$2" > /dev/null 2>&1; then
mv "$2" "$2.packed" && mkdir -p "$2" && tar -xf "$2.packed" -C "$2" && rm "$2.packed"
fi
"""
_GIT = """git clone --quiet "$1" "$2" || exit 1
[ -z "$3" ] || git -C "$2" checkout --quiet "$3" || exit 1
"""


@dataclass(frozen=True, slots=True)
class Fetch:
    """One artifact from elsewhere.

    Args:
        kind: `http`, `git` or `s3`.
        address: Of the file, object or repository.
        revision: Of the repository; of an object the region.
        unpacks: Whether a tarball becomes a folder, as Argo does it.
    """

    kind: str
    address: Value
    revision: Value | None = None
    unpacks: bool = True
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variable → name of the project's secret."""

    @property
    def image(self) -> str:
        """Return the image of a container that fetches it."""
        return GIT_IMAGE if self.kind == "git" else CURL_IMAGE

    @property
    def script(self) -> str:
        """Return the lines of sh that fetch `$1` to `$2`."""
        if self.kind == "git":
            return _GIT
        if self.kind == "s3":
            return _OBJECT + (_UNPACK if self.unpacks else "")
        return _FILE + (_UNPACK if self.unpacks else "")


def find_fetch(source: Mapping[str, Any], lookup: Lookup, place: str) -> Fetch | None:
    """Return how an artifact is fetched; None if it is not, or needs credentials or more."""
    unpacks = "none" not in mapping(source.get("archive"), f"{place}.archive")
    if "http" in source:
        http = mapping(source["http"], f"{place}.http")
        if set(http) <= {"url"}:
            return Fetch("http", resolved(scalar(http.get("url"), place), lookup, place),
                         unpacks=unpacks)  # fmt: skip
    if "s3" in source:
        return _object(mapping(source["s3"], f"{place}.s3"), lookup, f"{place}.s3",
                       unpacks=unpacks)  # fmt: skip
    if "git" in source:
        git = mapping(source["git"], f"{place}.git")
        if set(git) <= {"repo", "revision", "depth", "singleBranch", "branch"}:
            revision = git.get("revision", git.get("branch", ""))
            return Fetch("git", resolved(scalar(git.get("repo"), place), lookup, place),
                         resolved(scalar(revision, place), lookup, place))  # fmt: skip
    return None


def _object(found: Mapping[str, Any], lookup: Lookup, place: str, *, unpacks: bool) -> Fetch | None:
    """Return how an object is fetched whose address and keys are all given."""
    wanted = {"endpoint", "bucket", "key", "accessKeySecret", "secretKeySecret"}
    if not wanted <= set(found) <= wanted | {"region", "insecure"}:
        return None
    secrets = {}
    for name, variable in (("accessKeySecret", "ACCESS_KEY"), ("secretKeySecret", "SECRET_KEY")):
        each = mapping(found[name], f"{place}.{name}")
        key, secret = scalar(each.get("key"), place), scalar(each.get("name"), place)
        secrets[variable] = name_of(f"{secret}-{key}")
    scheme = "http" if found.get("insecure") is True else "https"
    parts = [resolved(scalar(found[name], place), lookup, place)
             for name in ("endpoint", "bucket", "key")]  # fmt: skip
    slash = Const("/")
    address = joined([Const(f"{scheme}://"), parts[0], slash, parts[1], slash, parts[2]])
    region = resolved(scalar(found.get("region") or "us-east-1", place), lookup, place)
    return Fetch("s3", address, region, unpacks, secrets)
