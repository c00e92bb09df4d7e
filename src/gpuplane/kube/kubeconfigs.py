"""Reads a kubeconfig that somebody sent, and refuses what must not be used or cannot work.

Opens no file, runs no program and asks no name server. A refusal names the field, the reason and
the fix, and never repeats a secret.
"""

import base64
import binascii
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import yaml

from gpuplane.kit.clock import instant_from_datetime
from gpuplane.kit.targets import literal_address
from gpuplane.kit.yaml_texts import UnreadableYaml, load_documents
from gpuplane.kube import pems
from gpuplane.kube.credentials import Connection

MAX_KUBECONFIG_BYTES = 512 << 10
"""One with a hundred clusters and their certificates has 400 KiB."""
MAX_KUBECONFIG_NODES = 20_000
"""Its scalars, lists and mappings; one with a hundred clusters, users and contexts has 4,000."""
MAX_SERVER_CHARS = 500
MAX_CONTEXT_CHARS = 253
"""What is kept of the choice: a name cut short would choose nothing."""

MAX_HOST_CHARS = 253

_SHOWN_NAMES = 8
_HOST_NAME = re.compile(r"[0-9A-Za-z_-]{1,63}(\.[0-9A-Za-z_-]{1,63})*")


class BadKubeconfig(ValueError):
    """A kubeconfig that is not taken.

    Attributes:
        field: Where, such as `users[deployer].user.exec`.
        reason: Why, a sentence.
        fix: What to do, a sentence.
    """

    def __init__(self, field: str, reason: str, fix: str) -> None:
        super().__init__(f"{field}: {reason} {fix}")
        self.field = field
        self.reason = reason
        self.fix = fix


def read_kubeconfig(
    text: str | bytes, context: str | None = None, *, now: datetime | None = None
) -> Connection:
    """Return the connection that a context of a kubeconfig names.

    The server may be inside the network: that is where clusters are, and only who may register
    clusters gets here. Addresses that no cluster has (link-local, where clouds keep their
    metadata, multicast, unspecified) are refused.

    Args:
        text: YAML or JSON.
        context: Which; the current one where None, or the only one.
        now: To tell what has expired.

    Raises:
        BadKubeconfig: With the field, the reason and the fix.
    """
    now = now or datetime.now(UTC)
    config = _load(text)
    name, chosen, place = _choose_context(config, context)
    cluster_name = _required(chosen, "cluster", place)
    user_name = _required(chosen, "user", place)
    cluster, cluster_place = _entry(config, "clusters", "cluster", cluster_name)
    user, user_place = _entry(config, "users", "user", user_name)
    server = _server(cluster, cluster_place)
    _refuse_cluster(cluster, cluster_place)
    authority = _authority(cluster, cluster_place, now)
    _refuse_user(user, user_place)
    token, token_until = _token(user, user_place, now)
    certificate, key, certificate_until = _certificate(user, user_place, now)
    if token is None and certificate is None:
        raise BadKubeconfig(
            user_place,
            "It holds no credentials.",
            "Add a token, or client-certificate-data with client-key-data.",
        )
    ends = [end for end in (token_until, certificate_until) if end is not None]
    return Connection(
        server=server,
        ca_pem=authority,
        token=token,
        certificate_pem=certificate,
        key_pem=key,
        tls_server_name=_server_name(cluster, cluster_place),
        namespace=_text(chosen, "namespace", place) or "default",
        context=name,
        expires_at=min(ends, default=None),
    )


def _load(text: str | bytes) -> Mapping[str, Any]:
    """Return the one document of a kubeconfig."""
    fix = "Send the output of `kubectl config view --raw --minify --flatten`."
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise BadKubeconfig("kubeconfig", "It is not UTF-8.", fix) from None
    if len(text) > MAX_KUBECONFIG_BYTES:
        reason = f"It is longer than {MAX_KUBECONFIG_BYTES >> 10} KiB."
        raise BadKubeconfig("kubeconfig", reason, fix)
    if not text.strip():
        raise BadKubeconfig("kubeconfig", "It is empty.", fix)
    try:
        # Before the text is read, which knows of a key that stands twice by its line alone.
        with contextlib.suppress(yaml.YAMLError, RecursionError):
            _refuse_repeated_keys(text)
        documents = load_documents(text, most_nodes=MAX_KUBECONFIG_NODES)
    except UnreadableYaml as error:
        raise BadKubeconfig("kubeconfig", str(error), fix) from None
    if len(documents) != 1:
        raise BadKubeconfig("kubeconfig", f"It holds {len(documents)} documents, not one.", fix)
    config = documents[0]
    if not isinstance(config, dict):
        raise BadKubeconfig("kubeconfig", "It is no mapping of fields.", fix)
    if config.get("kind", "Config") != "Config":
        raise BadKubeconfig("kind", "It is another kind, not Config.", fix)
    if config.get("apiVersion", "v1") != "v1":
        raise BadKubeconfig("apiVersion", "Only v1 is known.", "Write `apiVersion: v1`.")
    return config


class _CountingLoader(yaml.SafeLoader):
    """Reads outlines, and stops where a kubeconfig has more than any needs."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._left = MAX_KUBECONFIG_NODES

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node, as the loader below does."""
        self._left -= 1
        if self._left < 0:
            raise BadKubeconfig(
                "kubeconfig",
                f"It has more than {MAX_KUBECONFIG_NODES} values.",
                "Send the output of `kubectl config view --raw --minify --flatten`.",
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


def _refuse_repeated_keys(text: str) -> None:
    """Refuse a mapping that has a key twice, of which YAML readers take one or the other."""
    loader = _CountingLoader(text)
    try:
        while loader.check_node():
            nodes: list[tuple[str, yaml.Node | None]] = [("", loader.get_node())]
            seen: set[int] = set()
            while nodes:
                place, node = nodes.pop()
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                nodes += _below(place, node)
    finally:
        loader.dispose()


def _below(place: str, node: yaml.Node) -> list[tuple[str, yaml.Node | None]]:
    if isinstance(node, yaml.SequenceNode):
        return [(f"{place}[{index}]", part) for index, part in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return []
    found: list[tuple[str, yaml.Node | None]] = []
    keys: set[str] = set()
    for key, value in node.value:
        name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
        path = f"{place}.{name}" if place else name
        if name in keys:
            raise BadKubeconfig(path, "It is written twice.", "Leave one of them.")
        keys.add(name)
        found.append((path, value))
    return found


def _choose_context(
    config: Mapping[str, Any], wanted: str | None
) -> tuple[str, Mapping[str, Any], str]:
    """Return the name of the context to use, the context and its place."""
    names = [str(one.get("name")) for one in _entries(config, "contexts")]
    if not names:
        raise BadKubeconfig(
            "contexts", "There is none.", "Add a context that names a cluster and a user."
        )
    shown = ", ".join(names[:_SHOWN_NAMES])
    current = wanted if wanted is not None else config.get("current-context")
    if not current:
        if len(names) > 1:
            raise BadKubeconfig(
                "current-context",
                f"It is not set, and there are {len(names)} contexts.",
                f"Name one of them: {shown}.",
            )
        current = names[0]
    if not isinstance(current, str) or current not in names:
        raise BadKubeconfig(
            "current-context" if wanted is None else "context",
            f"There is no context {str(current)[:100]!r}.",
            f"Name one of them: {shown}.",
        )
    if len(current) > MAX_CONTEXT_CHARS:
        reason = f"Its name is longer than {MAX_CONTEXT_CHARS} characters."
        raise BadKubeconfig(
            "contexts", reason, "Give it a short one: `kubectl config rename-context`."
        )
    return current, *_entry(config, "contexts", "context", current)


def _entries(config: Mapping[str, Any], group: str) -> list[Mapping[str, Any]]:
    found = config.get(group)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadKubeconfig(group, "It is no list of mappings.", "Write `- name: …` under it.")
    return found


def _entry(
    config: Mapping[str, Any], group: str, key: str, name: str
) -> tuple[Mapping[str, Any], str]:
    """Return one named entry of a list and its place."""
    named = [one for one in _entries(config, group) if one.get("name") == name]
    if not named:
        known = [str(one.get("name")) for one in _entries(config, group)]
        shown = ", ".join(known[:_SHOWN_NAMES]) or "none"
        raise BadKubeconfig(
            group, f"There is no {key} {name[:100]!r}.", f"Add it; there is: {shown}."
        )
    if len(named) > 1:
        raise BadKubeconfig(
            group, f"There are {len(named)} entries named {name[:100]!r}.", "Leave one of them."
        )
    value = named[0].get(key)
    place = f"{group}[{name[:100]}].{key}"
    if not isinstance(value, dict):
        raise BadKubeconfig(place, "It is no mapping of fields.", f"Write the {key} under it.")
    return value, place


def _required(fields: Mapping[str, Any], key: str, place: str) -> str:
    value = _text(fields, key, place)
    if not value:
        raise BadKubeconfig(f"{place}.{key}", "It is missing.", f"Name the {key}.")
    return value


def _text(fields: Mapping[str, Any], key: str, place: str) -> str | None:
    value = fields.get(key)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise BadKubeconfig(f"{place}.{key}", "It is no text.", "Put it into quotes.")
    return value


def _server(cluster: Mapping[str, Any], place: str) -> str:
    """Return the server's address in its plain form."""
    text = _required(cluster, "server", place)
    field = f"{place}.server"
    fix = "Write `https://host:port`."
    if len(text) > MAX_SERVER_CHARS or not all("!" <= c <= "~" for c in text):
        raise BadKubeconfig(field, "It is no address.", fix)
    try:
        parts = urlsplit(text)
        port = parts.port
        host = parts.hostname or ""
    except ValueError:
        raise BadKubeconfig(field, "It is no address.", fix) from None
    if parts.scheme == "http":
        reason = "It is http, so that credentials would be sent in the clear."
        raise BadKubeconfig(field, reason, "Use the https address of the API server.")
    if parts.scheme != "https" or not host or "%" in parts.netloc:
        raise BadKubeconfig(field, "It is no https address.", fix)
    if parts.username is not None or parts.password is not None:
        raise BadKubeconfig(
            field, "It holds a user or a password.", "Put credentials under the user."
        )
    if parts.query or parts.fragment or ".." in parts.path:
        raise BadKubeconfig(field, "It holds more than host, port and path.", fix)
    _refuse_address(host, field)
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"


def _refuse_address(host: str, field: str) -> None:
    literal = literal_address(host)
    if literal is None:
        return
    try:
        number = ip_address(literal)
    except ValueError:
        raise BadKubeconfig(
            field, f"{host[:100]!r} is no address.", "Write a name or an address."
        ) from None
    inner = getattr(number, "ipv4_mapped", None) or number
    if inner.is_link_local or inner.is_multicast or inner.is_unspecified:
        raise BadKubeconfig(
            field,
            f"{inner} is link-local, multicast or unspecified: no API server answers there.",
            "Use the address under which the API server is reached from here.",
        )


def _refuse_cluster(cluster: Mapping[str, Any], place: str) -> None:
    if cluster.get("insecure-skip-tls-verify"):
        raise BadKubeconfig(
            f"{place}.insecure-skip-tls-verify",
            "The server's certificate would not be checked, so that anybody could take the "
            "credentials.",
            "Remove it and add certificate-authority-data; tls-server-name where the name differs.",
        )
    if cluster.get("certificate-authority"):
        raise BadKubeconfig(
            f"{place}.certificate-authority",
            "It names a file, which is not here.",
            "Embed it as certificate-authority-data: `kubectl config view --raw --flatten`.",
        )
    if cluster.get("proxy-url"):
        raise BadKubeconfig(
            f"{place}.proxy-url",
            "Clusters are reached directly, not through proxies.",
            "Remove it and use an address that is reached from here.",
        )


def _refuse_user(user: Mapping[str, Any], place: str) -> None:
    """Refuse credentials that are a program, a file or not the user's own."""
    ours = "Use the token of a ServiceAccount, or a client certificate."
    if user.get("exec") is not None:
        reason = "It names a program to run, and none is run here."
        raise BadKubeconfig(f"{place}.exec", reason, ours)
    if user.get("auth-provider") is not None:
        reason = "It names a plug-in, which Kubernetes itself took out in 1.26."
        raise BadKubeconfig(f"{place}.auth-provider", reason, ours)
    embed = "Embed it: `kubectl config view --raw --flatten`."
    for key in ("client-certificate", "client-key"):
        if user.get(key):
            reason = "It names a file, which is not here."
            raise BadKubeconfig(f"{place}.{key}", reason, embed)
    if user.get("tokenFile"):
        reason = "It names a file, which is not here."
        raise BadKubeconfig(f"{place}.tokenFile", reason, "Write the token itself as `token`.")
    if user.get("username") or user.get("password"):
        reason = "API servers take no passwords since Kubernetes 1.19."
        raise BadKubeconfig(f"{place}.username", reason, ours)
    for key in user:
        if key == "as" or key.startswith("as-"):
            reason = "Others are not impersonated from here."
            raise BadKubeconfig(f"{place}.{key}", reason, "Register with their own credentials.")


def _decoded(fields: Mapping[str, Any], key: str, place: str) -> bytes | None:
    text = _text(fields, key, place)
    if text is None:
        return None
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise BadKubeconfig(
            f"{place}.{key}", "It is no base64.", "Write the base64 of the PEM text, in one line."
        ) from None


def _authority(cluster: Mapping[str, Any], place: str, now: datetime) -> str | None:
    data = _decoded(cluster, "certificate-authority-data", place)
    if data is None:
        return None
    try:
        return pems.read_authorities(data, now)
    except pems.BadPem as error:
        raise BadKubeconfig(
            f"{place}.certificate-authority-data", error.reason, error.fix
        ) from None


def _server_name(cluster: Mapping[str, Any], place: str) -> str | None:
    name = _text(cluster, "tls-server-name", place)
    if name is not None and (len(name) > MAX_HOST_CHARS or not _HOST_NAME.fullmatch(name)):
        raise BadKubeconfig(f"{place}.tls-server-name", "It is no name.", "Write a host name.")
    return name


def _token(user: Mapping[str, Any], place: str, now: datetime) -> tuple[str | None, int | None]:
    """Return the token and when it runs out, where it tells."""
    text = _text(user, "token", place)
    if text is None:
        return None, None
    token = text.strip()
    field = f"{place}.token"
    if not token or any(not "!" <= c <= "~" for c in token):
        raise BadKubeconfig(
            field, "It holds characters that no token has.", "Copy the token again, in one line."
        )
    until = _token_end(token)
    if until is not None and until <= now.timestamp():
        when = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%d %H:%M UTC")
        raise BadKubeconfig(
            field, f"It has expired on {when}.", "Make a new one: `kubectl create token …`."
        )
    return token, None if until is None else until * 1000


def _token_end(token: str) -> int | None:
    """Return when a JWT runs out, seconds since the epoch; None for what tells nothing."""
    parts: Sequence[str] = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        end = claims.get("exp") if isinstance(claims, dict) else None
    except (ValueError, RecursionError):
        return None
    return int(end) if isinstance(end, int | float) and 0 <= end < 1 << 37 else None


def _certificate(
    user: Mapping[str, Any], place: str, now: datetime
) -> tuple[str | None, str | None, int | None]:
    """Return the client certificate, its key and when it runs out."""
    chain = _decoded(user, "client-certificate-data", place)
    key = _decoded(user, "client-key-data", place)
    if chain is None and key is None:
        return None, None, None
    if chain is None or key is None:
        missing = "client-certificate-data" if chain is None else "client-key-data"
        raise BadKubeconfig(
            f"{place}.{missing}",
            "It is missing, while the other half of the pair is there.",
            "Give certificate and key together.",
        )
    try:
        certificate_pem, first = pems.read_chain(chain, now)
    except pems.BadPem as error:
        raise BadKubeconfig(f"{place}.client-certificate-data", error.reason, error.fix) from None
    try:
        key_pem = pems.read_key(key, first)
    except pems.BadPem as error:
        raise BadKubeconfig(f"{place}.client-key-data", error.reason, error.fix) from None
    return certificate_pem, key_pem, instant_from_datetime(first.not_valid_after_utc)


def write_kubeconfig(connection: Connection, *, name: str = "gpuplane") -> str:
    """Return a kubeconfig of a connection, which holds its secrets; JSON, which YAML includes."""
    cluster: dict[str, Any] = {"server": connection.server}
    if connection.ca_pem is not None:
        cluster["certificate-authority-data"] = _encoded(connection.ca_pem)
    if connection.tls_server_name is not None:
        cluster["tls-server-name"] = connection.tls_server_name
    user: dict[str, Any] = {}
    if connection.token is not None:
        user["token"] = connection.token
    if connection.token_file is not None:
        user["tokenFile"] = str(connection.token_file)
    if connection.certificate_pem is not None and connection.key_pem is not None:
        user["client-certificate-data"] = _encoded(connection.certificate_pem)
        user["client-key-data"] = _encoded(connection.key_pem)
    context = {"cluster": name, "user": name, "namespace": connection.namespace}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": context}],
        }
    )


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode("ascii")
