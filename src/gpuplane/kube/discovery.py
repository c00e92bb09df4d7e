"""What a cluster serves: groups, versions and kinds, asked once in a while."""

from dataclasses import dataclass
from typing import Any

from gpuplane.kit.clock import Clock, SystemClock
from gpuplane.kube.errors import NotThere
from gpuplane.kube.kinds import Kind, path_segment
from gpuplane.kube.sessions import Session
from gpuplane.kube.watching import decode_object

REMEMBERED_S = 60.0
"""How long an answer holds."""
MISSING_S = 3.0
"""How long it holds that something is not served: what is installed is used soon after."""


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """The version of an API server."""

    major: int
    minor: int
    text: str
    platform: str = ""


@dataclass(frozen=True, slots=True)
class ServedGroup:
    """The versions of a group that a cluster serves, the preferred one first."""

    group: str
    preferred: str
    versions: tuple[str, ...]


class Discovery:
    """Asks what is served and remembers it for a while."""

    def __init__(self, session: Session, clock: Clock | None = None) -> None:
        """Ask nothing yet."""
        self._session = session
        self._clock = clock or SystemClock()
        self._answers: dict[str, tuple[float, dict[str, Any] | None]] = {}

    def forget(self) -> None:
        """Ask again next time."""
        self._answers.clear()

    async def version(self) -> ServerVersion:
        """Return the server's version, asked each time."""
        found = decode_object(await self._session.send("GET", "/version"), dict[str, Any])
        return ServerVersion(
            _number(found.get("major")),
            _number(found.get("minor")),
            str(found.get("gitVersion", "")),
            str(found.get("platform", "")),
        )

    async def served(self, group: str) -> ServedGroup | None:
        """Return the versions of a group, None where it is not served."""
        if not group:
            found = await self._ask("/api")
            versions = [str(one) for one in (found or {}).get("versions", [])]
            return ServedGroup("", versions[0], tuple(versions)) if versions else None
        found = await self._ask(f"/apis/{path_segment(group)}")
        if found is None:
            return None
        versions = [str(one.get("version")) for one in found.get("versions", [])]
        preferred = (found.get("preferredVersion") or {}).get("version") or next(iter(versions), "")
        others = [version for version in versions if version != preferred]
        return ServedGroup(group, preferred, (preferred, *others))

    async def kinds(self, group: str, version: str) -> tuple[Kind, ...]:
        """Return the kinds of one version of a group, none where it is not served."""
        path = f"/apis/{path_segment(group)}" if group else "/api"
        found = await self._ask(f"{path}/{path_segment(version)}")
        return tuple(
            Kind(group, version, one["name"], one["kind"], bool(one.get("namespaced")))
            for one in (found or {}).get("resources", [])
            if "/" not in one["name"]
        )

    async def kind_of(self, api_version: str, name: str) -> Kind:
        """Return a kind as the cluster serves it.

        Raises:
            NotThere: If it does not.
        """
        group, _, version = api_version.rpartition("/")
        for kind in await self.kinds(group, version):
            if kind.kind == name:
                return kind
        raise NotThere(404, "NotFound", f"The cluster serves no {name} in {api_version}.")

    async def resolve(self, kind: Kind) -> Kind | None:
        """Return a kind in a version that is served: its own, else the preferred; or None."""
        group = await self.served(kind.group)
        if group is None:
            return None
        first = [kind.version] if kind.version in group.versions else []
        for version in (*first, *group.versions):
            if any(one.kind == kind.kind for one in await self.kinds(kind.group, version)):
                return kind.at(version)
        return None

    async def _ask(self, path: str) -> dict[str, Any] | None:
        known = self._answers.get(path)
        now = self._clock.monotonic()
        if known is not None:
            asked_at, answer = known
            if now - asked_at < (MISSING_S if answer is None else REMEMBERED_S):
                return answer
        try:
            answer = decode_object(await self._session.send("GET", path), dict[str, Any])
        except NotThere:
            answer = None
        self._answers[path] = (now, answer)
        return answer


def _number(text: object) -> int:
    """Return the number that a version begins with; some servers say `28+`."""
    digits = "".join(sign for sign in str(text or "") if sign.isdigit())
    return int(digits or "0")
