"""Kubeconfigs: what is taken, and that what is not is refused with field, reason and fix."""

from __future__ import annotations

import base64
import copy
import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kube.connections import BadKubeconfig, read_kubeconfig
from gpuplane.kube.kubeconfigs import MAX_KUBECONFIG_BYTES, write_kubeconfig
from tests.certificates import DAY, Authority

ROOT = Path(__file__).parents[3]
NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
AUTHORITY = Authority(NOW)
OLD_AUTHORITY = Authority(NOW, days=0)
PAIR = AUTHORITY.sign("deployer")
OTHER_PAIR = AUTHORITY.sign("other")
SECRET = "s3cr3t-bearer-token"

Config = dict[str, Any]


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def a_config() -> Config:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "prod",
        "clusters": [
            {
                "name": "east",
                "cluster": {
                    "server": "https://10.0.0.5:6443",
                    "certificate-authority-data": encoded(AUTHORITY.certificate),
                },
            }
        ],
        "users": [{"name": "deployer", "user": {"token": SECRET}}],
        "contexts": [
            {"name": "prod", "context": {"cluster": "east", "user": "deployer", "namespace": "ml"}}
        ],
    }


def read(config: Config, context: str | None = None) -> Any:
    return read_kubeconfig(yaml.safe_dump(config), context, now=NOW)


def cluster(config: Config) -> Config:
    return config["clusters"][0]["cluster"]


def user(config: Config) -> Config:
    return config["users"][0]["user"]


def jwt(claims: dict[str, Any]) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJSUzI1NiJ9.{body}.c2ln"


def test_a_kubeconfig_with_a_token_becomes_a_connection() -> None:
    found = read(a_config())
    assert (found.server, found.namespace, found.context) == ("https://10.0.0.5:6443", "ml", "prod")
    assert (found.token, found.ca_pem) == (SECRET, AUTHORITY.certificate)
    assert found.expires_at is None


def test_a_client_certificate_is_taken_with_the_time_when_it_ends() -> None:
    config = a_config()
    config["users"][0]["user"] = {
        "client-certificate-data": encoded(PAIR.certificate),
        "client-key-data": encoded(PAIR.key),
    }
    found = read(config)
    assert (found.token, found.certificate_pem) == (None, PAIR.certificate)
    assert "PRIVATE KEY" in found.key_pem
    assert found.expires_at == round((NOW + DAY).timestamp() * 1000)


def test_a_certificate_of_a_clock_that_is_a_little_ahead_is_taken() -> None:
    fresh = AUTHORITY.sign("fresh", begins=datetime.timedelta(minutes=4))
    config = a_config()
    config["users"][0]["user"] = {
        "client-certificate-data": encoded(fresh.certificate),
        "client-key-data": encoded(fresh.key),
    }
    assert read(config).certificate_pem == fresh.certificate


def test_json_bytes_with_a_byte_order_mark_are_read_too() -> None:
    data = b"\xef\xbb\xbf" + json.dumps(a_config()).encode()
    assert read_kubeconfig(data, now=NOW).token == SECRET


def test_no_secret_is_in_the_repr_of_a_connection() -> None:
    config = a_config()
    user(config)["client-certificate-data"] = encoded(PAIR.certificate)
    user(config)["client-key-data"] = encoded(PAIR.key)
    shown = repr(read(config))
    assert SECRET not in shown
    assert "BEGIN" not in shown


def test_what_is_written_is_read_back_the_same() -> None:
    config = a_config()
    user(config)["client-certificate-data"] = encoded(PAIR.certificate)
    user(config)["client-key-data"] = encoded(PAIR.key)
    cluster(config)["tls-server-name"] = "api.east"
    found = read(config)
    again = read_kubeconfig(write_kubeconfig(found, name="prod"), now=NOW)
    assert again == found


@pytest.mark.parametrize(
    ("server", "plain"),
    [
        ("https://api.example.com", "https://api.example.com"),
        ("https://[fd00::5]:6443/", "https://[fd00::5]:6443"),
        ("https://rancher.example.com/k8s/clusters/c-1", None),
        ("https://127.0.0.1:6443", None),
        ("https://192.168.1.10:6443", None),
    ],
)
def test_addresses_inside_the_network_and_below_a_gateway_are_taken(
    server: str, plain: str | None
) -> None:
    config = a_config()
    cluster(config)["server"] = server
    assert read(config).server == (plain or server)


def test_a_context_may_be_named_and_the_only_one_needs_no_name() -> None:
    config = a_config()
    config["contexts"].append(
        {"name": "dev", "context": {"cluster": "east", "user": "deployer", "namespace": "dev"}}
    )
    assert read(config, "dev").namespace == "dev"
    del config["contexts"][1], config["current-context"]
    assert read(config).context == "prod"


def test_a_token_that_is_a_jwt_tells_when_it_ends() -> None:
    config = a_config()
    user(config)["token"] = jwt({"exp": NOW.timestamp() + 3600})
    assert read(config).expires_at == round(NOW.timestamp() + 3600) * 1000


def _set(where: Callable[[Config], Config], **values: Any) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        where(config).update({key.replace("_", "-"): value for key, value in values.items()})

    return change


def _top(config: Config) -> Config:
    return config


def _context(config: Config) -> Config:
    return config["contexts"][0]["context"]


def _twice(group: str) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        config[group].append(copy.deepcopy(config[group][0]))

    return change


def _second_context(config: Config) -> None:
    config["contexts"].append({"name": "dev", "context": _context(config)})
    del config["current-context"]


def _pair(certificate: str | None, key: str | None) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        fields = {"client-certificate-data": certificate, "client-key-data": key}
        config["users"][0]["user"] = {k: encoded(v) for k, v in fields.items() if v is not None}

    return change


EXPIRED = AUTHORITY.sign("old", begins=-2 * DAY, ends=-DAY)
EARLY = AUTHORITY.sign("early", begins=DAY, ends=2 * DAY)
LOCKED = AUTHORITY.sign("locked", password="open sesame")

BAD: list[tuple[str, Callable[[Config], None], str, str]] = [
    (
        "an exec plug-in",
        _set(user, exec={"command": "aws"}),
        "users[deployer].user.exec",
        "program",
    ),
    (
        "an auth provider",
        _set(user, auth_provider={"name": "gcp"}),
        "users[deployer].user.auth-provider",
        "plug-in",
    ),
    (
        "a file with the authority",
        _set(cluster, certificate_authority="/ca.crt"),
        "clusters[east].cluster.certificate-authority",
        "file",
    ),
    (
        "a file with a certificate",
        _set(user, client_certificate="a.crt"),
        "users[deployer].user.client-certificate",
        "file",
    ),
    (
        "a file with a key",
        _set(user, client_key="a.key"),
        "users[deployer].user.client-key",
        "file",
    ),
    (
        "a file with a token",
        _set(user, tokenFile="/token"),
        "users[deployer].user.tokenFile",
        "file",
    ),
    ("a password", _set(user, username="a"), "users[deployer].user.username", "passwords"),
    ("an impersonated user", _set(user, **{"as": "x"}), "users[deployer].user.as", "impersonated"),
    (
        "unchecked TLS",
        _set(cluster, insecure_skip_tls_verify=True),
        "clusters[east].cluster.insecure-skip-tls-verify",
        "checked",
    ),
    (
        "a proxy",
        _set(cluster, proxy_url="http://p:1"),
        "clusters[east].cluster.proxy-url",
        "directly",
    ),
    (
        "http",
        _set(cluster, server="http://10.0.0.5"),
        "clusters[east].cluster.server",
        "in the clear",
    ),
    ("no scheme", _set(cluster, server="10.0.0.5:6443"), "clusters[east].cluster.server", "https"),
    (
        "a password in the address",
        _set(cluster, server="https://u:hunter2@h"),
        "clusters[east].cluster.server",
        "password",
    ),
    (
        "a query in the address",
        _set(cluster, server="https://h/?a=b"),
        "clusters[east].cluster.server",
        "more than",
    ),
    (
        "a port that is none",
        _set(cluster, server="https://h:99999"),
        "clusters[east].cluster.server",
        "no address",
    ),
    (
        "a space in the address",
        _set(cluster, server="https://h /"),
        "clusters[east].cluster.server",
        "no address",
    ),
    (
        "the metadata service",
        _set(cluster, server="https://169.254.169.254"),
        "clusters[east].cluster.server",
        "link-local",
    ),
    (
        "the metadata service in another writing",
        _set(cluster, server="https://0xa9fea9fe"),
        "clusters[east].cluster.server",
        "link-local",
    ),
    (
        "the metadata service over IPv6",
        _set(cluster, server="https://[::ffff:169.254.169.254]"),
        "clusters[east].cluster.server",
        "link-local",
    ),
    (
        "a zone in the address",
        _set(cluster, server="https://[fe80::1%25eth0]"),
        "clusters[east].cluster.server",
        "no https address",
    ),
    (
        "an unspecified address",
        _set(cluster, server="https://0.0.0.0:6443"),
        "clusters[east].cluster.server",
        "unspecified",
    ),
    ("no server", _set(cluster, server=""), "clusters[east].cluster.server", "missing"),
    (
        "a server that is no text",
        _set(cluster, server=["https://h"]),
        "clusters[east].cluster.server",
        "no text",
    ),
    (
        "bad base64",
        _set(cluster, certificate_authority_data="%%%"),
        "clusters[east].cluster.certificate-authority-data",
        "base64",
    ),
    (
        "a bad PEM text",
        _set(cluster, certificate_authority_data=encoded("nothing")),
        "clusters[east].cluster.certificate-authority-data",
        "no certificate",
    ),
    (
        "an expired authority",
        _set(cluster, certificate_authority_data=encoded(OLD_AUTHORITY.certificate)),
        "clusters[east].cluster.certificate-authority-data",
        "expired",
    ),
    (
        "a server name that is none",
        _set(cluster, tls_server_name="a b"),
        "clusters[east].cluster.tls-server-name",
        "no name",
    ),
    (
        "an expired certificate",
        _pair(EXPIRED.certificate, EXPIRED.key),
        "users[deployer].user.client-certificate-data",
        "expired",
    ),
    (
        "a certificate of tomorrow",
        _pair(EARLY.certificate, EARLY.key),
        "users[deployer].user.client-certificate-data",
        "only from",
    ),
    (
        "a certificate without key",
        _pair(PAIR.certificate, None),
        "users[deployer].user.client-key-data",
        "missing",
    ),
    (
        "a key without certificate",
        _pair(None, PAIR.key),
        "users[deployer].user.client-certificate-data",
        "missing",
    ),
    (
        "another's key",
        _pair(PAIR.certificate, OTHER_PAIR.key),
        "users[deployer].user.client-key-data",
        "not the certificate's",
    ),
    (
        "an encrypted key",
        _pair(LOCKED.certificate, LOCKED.key),
        "users[deployer].user.client-key-data",
        "encrypted",
    ),
    (
        "a key that is none",
        _pair(PAIR.certificate, "-----BEGIN PRIVATE KEY-----"),
        "users[deployer].user.client-key-data",
        "no private key",
    ),
    ("no credentials", _pair(None, None), "users[deployer].user", "no credentials"),
    (
        "a token of two lines",
        _set(user, token="a\nb: c"),
        "users[deployer].user.token",
        "characters",
    ),
    (
        "an expired token",
        _set(user, token=jwt({"exp": 1_600_000_000})),
        "users[deployer].user.token",
        "expired",
    ),
    ("an unknown context", _set(_top, current_context="nope"), "current-context", "no context"),
    ("no current context of several", _second_context, "current-context", "2 contexts"),
    ("an unknown cluster", _set(_context, cluster="west"), "clusters", "no cluster"),
    ("an unknown user", _set(_context, user="nobody"), "users", "no user"),
    ("a context without cluster", _set(_context, cluster=""), "context.cluster", "missing"),
    ("two clusters of one name", _twice("clusters"), "clusters", "2 entries"),
    ("two users of one name", _twice("users"), "users", "2 entries"),
    ("no contexts", _set(_top, contexts=[]), "contexts", "none"),
    ("clusters that are no list", _set(_top, clusters={"east": {}}), "clusters", "no list"),
    ("another kind", _set(_top, kind="Secret"), "kind", "not Config"),
    ("another version", _set(_top, apiVersion="v2"), "apiVersion", "v1"),
]


@pytest.mark.parametrize(("what", "change", "field", "reason"), BAD, ids=[one[0] for one in BAD])
def test_it_is_refused_with_field_reason_and_fix(
    what: str, change: Callable[[Config], None], field: str, reason: str
) -> None:
    config = a_config()
    change(config)
    with pytest.raises(BadKubeconfig) as caught:
        read(config)
    assert field in caught.value.field
    assert reason in caught.value.reason
    assert caught.value.fix.endswith((".", "`."))
    assert SECRET not in str(caught.value)
    assert "hunter2" not in str(caught.value)


LAUGHS = (
    "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=False)
    )
    + "kind: Config\n"
)

UNREADABLE = [
    ("an empty text", "", "empty"),
    ("ten megabytes", "#" * (10 << 20), "longer than"),
    ("a little too much", "#" * (MAX_KUBECONFIG_BYTES + 1), "longer than"),
    ("no YAML", "a: [", "no YAML"),
    ("a list", "- a\n- b\n", "no mapping"),
    ("two documents", "kind: Config\n---\nkind: Config\n", "2 documents"),
    ("aliases a billion times over", LAUGHS, "aliases"),
    ("an alias of itself", "a: &a [*a]\n", "alias"),
    ("brackets without end", "[" * 5_000, "deep"),
    ("an object of a class", "a: !!python/object/apply:os.system [ls]\n", "no YAML"),
    ("bytes that are no text", b"\xff\xfe\x00k", "UTF-8"),
]


@pytest.mark.parametrize(("what", "text", "reason"), UNREADABLE, ids=[one[0] for one in UNREADABLE])
def test_what_is_no_kubeconfig_at_all_is_refused(what: str, text: str | bytes, reason: str) -> None:
    with pytest.raises(BadKubeconfig) as caught:
        read_kubeconfig(text, now=NOW)
    assert reason in caught.value.reason
    assert "kubectl config view" in caught.value.fix


def test_a_key_that_is_written_twice_is_refused_with_its_place() -> None:
    text = yaml.safe_dump(a_config()).replace(
        "    server:", "    server: https://evil\n    server:"
    )
    with pytest.raises(BadKubeconfig) as caught:
        read_kubeconfig(text, now=NOW)
    assert (caught.value.field, caught.value.reason) == (
        "clusters[0].cluster.server",
        "It is written twice.",
    )


def test_the_page_names_every_field_for_which_a_kubeconfig_is_refused() -> None:
    page = (ROOT / "docs" / "reference" / "kubeconfigs.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    refused = {field.rpartition(".")[2] for _, _, field, _ in BAD}
    assert refused - named == {"cluster", "user"}  # whole entries: the sentences name them
    assert named <= refused


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(
        [SECRET, "prod", "east", "deployer", "https://[::1", "https://h:0", "Ä" * 30]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "cluster", "user", "context", "server", "exec", "token"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of everything in a document, the whole of it first."""
    keys: Any = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    return [at, *(place for key in keys for place in places(value[key], (*at, key)))]


@given(st.data())
def test_whatever_stands_anywhere_in_it_is_taken_or_refused_and_nothing_else(
    data: st.DataObject,
) -> None:
    config: Any = a_config()
    user(config)["client-certificate-data"] = encoded(PAIR.certificate)
    user(config)["client-key-data"] = encoded(PAIR.key)
    *path, last = data.draw(st.sampled_from(places(config)[1:]), label="place")
    inside = config
    for key in path:
        inside = inside[key]
    value = data.draw(VALUES, label="value")
    inside[last] = value
    refusal: BadKubeconfig | None = None
    try:
        assert read(config).server.startswith("https://")
    except BadKubeconfig as error:
        refusal = error
    if refusal is not None:
        assert all((refusal.field, refusal.reason, refusal.fix))
        assert SECRET not in str(refusal) or SECRET in str(value)  # Hypothesis draws literals


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_at_all_is_refused_in_words(text: str | bytes) -> None:
    with pytest.raises(BadKubeconfig):
        read_kubeconfig(text, now=NOW)


@pytest.mark.parametrize("name", ["a" * 253, "prod]", "a]b[c", "arn:aws:eks:eu/" + "x" * 150])
def test_a_context_is_told_by_its_whole_name_and_found_again_by_it(name: str) -> None:
    config = a_config()
    config["contexts"][0]["name"] = config["current-context"] = name
    found = read(config)
    assert found.context == name
    assert read(config, found.context) == found


def test_a_context_whose_name_cannot_be_kept_is_refused() -> None:
    config = a_config()
    config["contexts"][0]["name"] = config["current-context"] = "a" * 254
    with pytest.raises(BadKubeconfig, match="longer than 253") as refused:
        read(config)
    assert refused.value.field == "contexts"


@pytest.mark.parametrize(
    "name", [".a", "a.", "a..b", "a" * 64, "a/b", "a b", "é", "a." * 127 + "a"]
)
def test_a_server_name_that_is_no_host_name_is_refused(name: str) -> None:
    config = a_config()
    cluster(config)["tls-server-name"] = name
    with pytest.raises(BadKubeconfig, match="It is no name") as refused:
        read(config)
    assert refused.value.field.endswith("tls-server-name")


@pytest.mark.parametrize("sign", ["\x7f", "\x1f", "é", " "])
def test_a_server_with_signs_that_no_address_has_is_refused(sign: str) -> None:
    config = a_config()
    cluster(config)["server"] = f"https://a{sign}b:6443"
    with pytest.raises(BadKubeconfig, match="It is no address") as refused:
        read(config)
    assert refused.value.field.endswith("server")


@pytest.mark.parametrize(
    "text",
    [
        "extra: [" + "x," * 20_000 + "]",
        "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
        "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: [" + "*c," * 20 + "]",
    ],
    ids=["written", "by aliases"],
)
def test_a_kubeconfig_with_more_values_than_any_needs_is_refused(text: str) -> None:
    whole = yaml.safe_dump(a_config()) + text
    with pytest.raises(BadKubeconfig, match="more than 20000 values") as refused:
        read_kubeconfig(whole, now=NOW)
    assert refused.value.field == "kubeconfig"


def test_a_kubeconfig_with_a_hundred_clusters_is_taken() -> None:
    config = a_config()
    for group in ("clusters", "users", "contexts"):
        first = config[group][0]
        config[group] += [{**copy.deepcopy(first), "name": f"n{at}"} for at in range(100)]
    assert read(config).server == "https://10.0.0.5:6443"
