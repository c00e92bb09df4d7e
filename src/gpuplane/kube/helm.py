"""Helm releases of one cluster, through the `helm` binary (3 or 4).

Never puts a value or a credential on a command line: values go by stdin, the kubeconfig by a file
that only the binary can read and that is gone after. Does not queue: two operations on one release
at once are the caller's to avoid, and Helm's to refuse.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuplane.kube.credentials import Connection
from gpuplane.kube.kubeconfigs import write_kubeconfig
from gpuplane.kube.processes import Ended, OutOfTime, TooMuchSaid, run_program, secret_file

READ_TIMEOUT_S = 60.0
CHANGE_TIMEOUT_S = 300.0
GRACE_S = 15.0
"""What the binary gets beyond the time it was told, to say itself what it waited for."""
HISTORY = 5
PAGE = 256
MAX_MESSAGE_CHARS = 1_500

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VERSION = re.compile(r"[0-9A-Za-z.+~^<>=*, |-]{1,100}")
_NO_MEMORY = re.compile(rb"^fatal error: .*(memory|arena|cannot map)", re.M)
"""How a program in Go ends that gets no more memory; what it was doing follows by the page."""
_SECRET_KEY = re.compile(r"pass|token|secret|key|credential|authorization", re.I)


class HelmError(Exception):
    """What Helm could not do.

    Attributes:
        reason: A CamelCase word: `NoBinary`, `TimedOut`, `Busy`, `ChartNotAvailable`,
            `ChartFailed`, `InvalidValues`, `Invalid`, `Unauthorized`, `Forbidden`, `Unreachable`,
            `OwnedByOthers`, `FieldConflict`, `NoSuchKind`, `NotThere`, `OutOfMemory`, `Failed`.
        message: A sentence for people, without credentials.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class Chart:
    """Where a chart is.

    Attributes:
        ref: A folder, a `.tgz`, an `oci://` address, or a name in the repository.
        version: Exactly this one; needed for what is not a file.
        repo: The repository's https address.
    """

    ref: str
    version: str | None = None
    repo: str | None = None

    def arguments(self) -> list[str]:
        """Return it as the binary takes it.

        Raises:
            ValueError: If it could be taken for an option or reaches over http.
        """
        if not self.ref or self.ref.startswith("-") or any(c < " " for c in self.ref):
            raise ValueError(f"{self.ref!r} is no chart")
        found = [self.ref]
        if self.version is not None:
            if not _VERSION.fullmatch(self.version) or self.version.startswith("-"):
                raise ValueError(f"{self.version!r} is no version of a chart")
            found += ["--version", self.version]
        if self.repo is not None:
            if not self.repo.startswith("https://"):
                raise ValueError("a chart repository is reached over https")
            found += ["--repo", self.repo]
        return found


@dataclass(frozen=True, slots=True)
class Release:
    """A release as Helm tells it.

    Attributes:
        name: Its name.
        namespace: Where its record is.
        revision: Counted from 1.
        status: `deployed`, `failed`, `pending-install`, `pending-upgrade`, `uninstalling`, …
        chart: Name and version in one word, such as `kueue-0.15.0`; empty where not told.
        app_version: Of what the chart brings; empty where not told.
        description: What Helm says of the last operation.
    """

    name: str
    namespace: str
    revision: int
    status: str
    chart: str = ""
    app_version: str = ""
    description: str = ""


class Helm:
    """The `helm` binary, for one cluster."""

    def __init__(
        self,
        connection: Connection,
        *,
        binary: str | Path = "helm",
        home: Path,
        search_path: str = "/usr/local/bin:/usr/bin:/bin",
        certificates: str | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            connection: Into the cluster.
            binary: A path, or a name to find on the search path.
            home: A folder for its caches of charts and indexes; made when missing.
            search_path: Where the binary and its own helpers are.
            certificates: A file of authorities for chart repositories, where the system's will not
                do.
        """
        self._connection = connection
        self._binary = str(binary)
        self._home = home
        self._environment = {
            "PATH": search_path,
            "HOME": str(home),
            "HELM_CACHE_HOME": str(home / "cache"),
            "HELM_CONFIG_HOME": str(home / "config"),
            "HELM_DATA_HOME": str(home / "data"),
            "LANG": "C.UTF-8",
        }
        if certificates is not None:
            self._environment["SSL_CERT_FILE"] = certificates
        self._version: str | None = None

    async def version(self) -> str:
        """Return the binary's version, such as `v4.3.1`.

        Raises:
            HelmError: `NoBinary` if there is none.
        """
        if self._version is None:
            ended = await self._run(["version", "--template", "{{.Version}}"], READ_TIMEOUT_S)
            self._version = ended.stdout.decode(errors="replace").strip()
        return self._version

    async def template(
        self,
        name: str,
        namespace: str,
        chart: Chart,
        values: Mapping[str, Any] | None = None,
        *,
        include_crds: bool = True,
        kube_version: str | None = None,
        memory_mib: int | None = None,
    ) -> str:
        """Return the manifests that a chart would make, as YAML; asks no cluster.

        Args:
            memory_mib: What rendering may take, None for no bound: a line of a template can ask for
                any amount. Helm reads the values before the first of them, so it holds by then.

        Raises:
            HelmError: `OutOfMemory` if that was not enough, or what else hindered it.
        """
        arguments = ["template", _name(name), *chart.arguments(), *_in(namespace)]
        arguments += ["--values", "-"]
        if include_crds:
            arguments.append("--include-crds")
        if kube_version is not None:
            arguments += ["--kube-version", kube_version]
        ended = await self._run(arguments, READ_TIMEOUT_S, values, memory_mib=memory_mib)
        return ended.stdout.decode("utf-8", "replace")

    async def show_chart(self, chart: Chart, *, memory_mib: int | None = None) -> str:
        """Return the `Chart.yaml` of a chart, as YAML; asks no cluster."""
        arguments = ["show", "chart", *chart.arguments()]
        ended = await self._run(arguments, READ_TIMEOUT_S, memory_mib=memory_mib)
        return ended.stdout.decode("utf-8", "replace")

    async def upgrade_install(
        self,
        name: str,
        namespace: str,
        chart: Chart,
        values: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = CHANGE_TIMEOUT_S,
        wait: bool = True,
        create_namespace: bool = True,
        take_ownership: bool = False,
    ) -> Release:
        """Install a release, or bring it to this chart with these values.

        Args:
            name: Of the release.
            namespace: Where.
            chart: Which.
            values: All of them: those of an earlier revision are not kept.
            timeout_s: For each thing that it waits for.
            wait: Until what was made is ready.
            create_namespace: If it is not there.
            take_ownership: Take over objects that are there already without Helm.

        Raises:
            HelmError: What hindered it.
        """
        arguments = ["upgrade", _name(name), *chart.arguments(), "--install", *_in(namespace)]
        arguments += ["--values", "-", "--output", "json", "--history-max", str(HISTORY)]
        arguments += ["--reset-values", "--timeout", f"{max(1, round(timeout_s))}s"]
        for option, wanted in (
            ("--wait", wait),
            ("--create-namespace", create_namespace),
            ("--take-ownership", take_ownership),
        ):
            if wanted:
                arguments.append(option)
        ended = await self._run(arguments, timeout_s + GRACE_S, values, reaches=True)
        return _release_of(_parsed(ended))

    async def uninstall(
        self, name: str, namespace: str, *, timeout_s: float = CHANGE_TIMEOUT_S, wait: bool = True
    ) -> bool:
        """Take a release away; False when there was none."""
        arguments = ["uninstall", _name(name), *_in(namespace)]
        arguments += ["--timeout", f"{max(1, round(timeout_s))}s"]
        if wait:
            arguments.append("--wait")
        try:
            await self._run(arguments, timeout_s + GRACE_S, reaches=True)
        except HelmError as error:
            if error.reason == "NotThere":
                return False
            raise
        return True

    async def rollback(
        self,
        name: str,
        namespace: str,
        *,
        revision: int = 0,
        timeout_s: float = CHANGE_TIMEOUT_S,
    ) -> None:
        """Bring a release back to a revision, the one before where 0.

        Also frees a release whose upgrade was cut off and which is pending since.
        """
        arguments = ["rollback", _name(name), str(int(revision)), *_in(namespace), "--wait"]
        arguments += ["--timeout", f"{max(1, round(timeout_s))}s"]
        await self._run(arguments, timeout_s + GRACE_S, reaches=True)

    async def list(self, namespace: str | None = None) -> Sequence[Release]:
        """Return the releases of a namespace, or of all, whatever state they are in."""
        where = ["--all-namespaces"] if namespace is None else _in(namespace)
        if not (await self.version()).startswith("v4"):
            where.append("--all")  # Helm 4 shows all of itself
        found: dict[tuple[str, str], Release] = {}
        while True:
            arguments = ["list", *where, "--output", "json", "--max", str(PAGE)]
            arguments += ["--offset", str(len(found))]
            ended = await self._run(arguments, READ_TIMEOUT_S, reaches=True)
            page = [_release_of(one) for one in _parsed(ended) or ()]
            before = len(found)
            found |= {(one.namespace, one.name): one for one in page}
            if len(page) < PAGE or len(found) == before:
                return tuple(found.values())

    async def status(self, name: str, namespace: str) -> Release | None:
        """Return a release, or None."""
        arguments = ["status", _name(name), *_in(namespace), "--output", "json"]
        try:
            ended = await self._run(arguments, READ_TIMEOUT_S, reaches=True)
        except HelmError as error:
            if error.reason == "NotThere":
                return None
            raise
        return _release_of(_parsed(ended))

    async def get_values(self, name: str, namespace: str) -> dict[str, Any]:
        """Return the values that a release was given, which may hold secrets.

        Raises:
            HelmError: `NotThere` if there is no such release.
        """
        arguments = ["get", "values", _name(name), *_in(namespace), "--output", "json"]
        return dict(_parsed(await self._run(arguments, READ_TIMEOUT_S, reaches=True)) or {})

    async def _run(
        self,
        arguments: Sequence[str],
        timeout_s: float,
        values: Mapping[str, Any] | None = None,
        *,
        reaches: bool = False,
        memory_mib: int | None = None,
    ) -> Ended:
        """Run the binary and return what it said.

        Raises:
            HelmError: If it did not succeed.
        """
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        stdin = json.dumps(dict(values or {})).encode()
        config = write_kubeconfig(self._connection).encode() if reaches else b"{}"
        with secret_file(config) as kubeconfig:
            try:
                ended = await run_program(
                    [self._binary, *arguments, "--kubeconfig", kubeconfig.path],
                    environment=self._environment,
                    stdin=stdin,
                    secrets=[kubeconfig],
                    timeout_s=timeout_s,
                    folder=self._home,
                    memory_mib=memory_mib,
                )
            except FileNotFoundError:
                raise HelmError("NoBinary", f"There is no program {self._binary}.") from None
            except OSError as error:
                reason = f"{self._binary} cannot be run: {error.strerror}."
                raise HelmError("NoBinary", reason) from None
            except OutOfTime as error:
                raise HelmError("TimedOut", str(error)) from None
            except TooMuchSaid as error:
                raise HelmError("Failed", str(error)) from None
        if ended.code != 0 and memory_mib is not None and _NO_MEMORY.search(ended.stderr):
            raise HelmError("OutOfMemory", f"It takes more than {memory_mib} MiB of memory.")
        if ended.code != 0:
            raise _failure(ended.stderr.decode("utf-8", "replace"), self._connection, values)
        return ended


# What Helm writes when it fails, first match; the words are those of Helm and of client-go.
_REASONS: tuple[tuple[str, str], ...] = (
    ("another operation (install/upgrade/rollback) is in progress", "Busy"),
    ("asked for the client to provide credentials", "Unauthorized"),
    ("unauthorized", "Unauthorized"),
    ("cluster unreachable", "Unreachable"),
    # Before the words of the way there: it is the chart's repository that is out of reach.
    ("is not a valid chart repository", "ChartNotAvailable"),
    ("failed to fetch", "ChartNotAvailable"),
    ("failed to do request", "ChartNotAvailable"),
    ("connection refused", "Unreachable"),
    # A webhook's rules may change, and what is still being taken away goes: another try may do.
    ("denied the request", "Failed"),
    ("field is immutable", "Failed"),
    ('" is invalid: ', "Invalid"),  # before the words that it may name for a field
    ("cannot be handled as a", "Invalid"),
    ("is forbidden", "Forbidden"),
    ("forbidden:", "Forbidden"),
    ("values don't meet the specifications of the schema", "InvalidValues"),
    ("invalid ownership metadata", "OwnedByOthers"),
    ("apply failed with", "FieldConflict"),
    ("context deadline exceeded", "TimedOut"),
    ("timed out waiting", "TimedOut"),
    ("no matches for kind", "NoSuchKind"),
    ("ensure crds are installed first", "NoSuchKind"),
    ("release: not found", "NotThere"),
    ("no such host", "ChartNotAvailable"),
    ("not found in", "ChartNotAvailable"),
    ("failed to download", "ChartNotAvailable"),
    ("failed to authorize", "ChartNotAvailable"),
    ("no such file or directory", "ChartNotAvailable"),
    ("chart.yaml file is missing", "ChartNotAvailable"),
    ('path "', "ChartNotAvailable"),
    ("execution error at", "ChartFailed"),
    ("parse error at", "ChartFailed"),
    ("yaml parse error on", "ChartFailed"),
    ("error calling", "ChartFailed"),
    ("template:", "ChartFailed"),
)


def _failure(stderr: str, connection: Connection, values: Mapping[str, Any] | None) -> HelmError:
    """Return what Helm's words mean, without anything secret that they may repeat."""
    lines = [line for line in stderr.splitlines() if line.strip() and " WARN" not in line]
    first = next((at for at, line in enumerate(lines) if line.lower().startswith("error")), 0)
    text = "\n".join(lines[first:]).removeprefix("Error: ").strip() or "Helm failed without a word."
    for secret in _secrets(connection, values):
        text = text.replace(secret, "•••")
    if len(text) > MAX_MESSAGE_CHARS:
        text = text[: MAX_MESSAGE_CHARS - 1] + "…"
    low = text.lower()
    reason = next((word for sign, word in _REASONS if sign in low), "Failed")
    return HelmError(reason, text)


def _secrets(connection: Connection, values: Mapping[str, Any] | None) -> list[str]:
    """Return what must not be told, the longest first."""
    found = {text for text in (connection.token, connection.key_pem) if text}
    ahead: list[tuple[bool, Any]] = [(False, values)]
    while ahead:
        secret, value = ahead.pop()
        if isinstance(value, Mapping):
            ahead += [
                (secret or bool(_SECRET_KEY.search(str(key))), one) for key, one in value.items()
            ]
        elif isinstance(value, list | tuple):
            ahead += [(secret, one) for one in value]
        elif secret and isinstance(value, str) and len(value) >= 4:
            found.add(value)
    return sorted(found, key=len, reverse=True)


def _parsed(ended: Ended) -> Any:
    try:
        return json.loads(ended.stdout)
    except ValueError:
        raise HelmError("Failed", "Helm answered something else than JSON.") from None


def _release_of(found: Mapping[str, Any]) -> Release:
    """Return a release of what `list`, `status` or `upgrade` tell."""
    info = found.get("info") or {}
    metadata = (found.get("chart") or {}) if isinstance(found.get("chart"), Mapping) else {}
    chart = metadata.get("metadata") or {}
    named = f"{chart['name']}-{chart.get('version', '')}" if chart.get("name") else ""
    return Release(
        name=str(found.get("name", "")),
        namespace=str(found.get("namespace", "")),
        revision=int(found.get("revision") or found.get("version") or 0),
        status=str(info.get("status") or found.get("status") or ""),
        chart=named or (found["chart"] if isinstance(found.get("chart"), str) else ""),
        app_version=str(chart.get("appVersion") or found.get("app_version") or ""),
        description=str(info.get("description") or ""),
    )


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a release")
    return name


def _in(namespace: str) -> list[str]:
    if not _NAMESPACE.fullmatch(namespace):
        raise ValueError(f"{namespace!r} is no namespace")
    return ["--namespace", namespace]
