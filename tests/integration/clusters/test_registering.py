"""What is refused before a cluster is stored: by the kubeconfig, by the form, by how often."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.inside import inside
from tests.integration.jobs.worlds import World

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def a_kubeconfig(**changes: Any) -> dict[str, Any]:
    """Return a kubeconfig of a server that is not there, with parts replaced."""
    cluster = {"server": "https://127.0.0.1:1", **changes.pop("cluster", {})}
    user = changes.pop("user", {"token": "s3cr3t-token-of-mine"})
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
        **changes,
    }


def text_of(**changes: Any) -> str:
    return yaml.safe_dump(a_kubeconfig(**changes))


BAD = {
    "empty": " ",
    "no mapping": "just a word",
    "no yaml": "{",
    "two documents": text_of() + "---\n" + text_of(),
    "another kind": text_of(kind="Pod"),
    "another version": text_of(apiVersion="v2"),
    "no contexts": text_of(contexts=[]),
    "an unknown context": text_of(**{"current-context": "other"}),
    "an unknown cluster": text_of(clusters=[]),
    "an unknown user": text_of(users=[]),
    "no server": text_of(cluster={"server": ""}),
    "http": text_of(cluster={"server": "http://127.0.0.1:1"}),
    "a metadata address": text_of(cluster={"server": "https://169.254.169.254"}),
    "skipped verification": text_of(cluster={"insecure-skip-tls-verify": True}),
    "an authority in a file": text_of(cluster={"certificate-authority": "/etc/ca.crt"}),
    "an authority that is none": text_of(
        cluster={"certificate-authority-data": base64.b64encode(b"no").decode()}
    ),
    "a proxy": text_of(cluster={"proxy-url": "http://proxy:3128"}),
    "an exec plug-in": text_of(user={"exec": {"command": "aws", "apiVersion": "x"}}),
    "an auth provider": text_of(user={"auth-provider": {"name": "gcp"}}),
    "a token in a file": text_of(user={"tokenFile": "/var/run/token"}),
    "a key without its certificate": text_of(
        user={"client-key-data": base64.b64encode(b"key").decode()}
    ),
    "a certificate in a file": text_of(user={"client-certificate": "/etc/client.crt"}),
    "no credentials": text_of(user={}),
    "a password": text_of(user={"username": "admin", "password": "s3cr3t-token-of-mine"}),
    "nobody there": text_of(),
}
"""Kubeconfigs that are no use, by what is wrong with them."""


@pytest.mark.parametrize("name", sorted(BAD))
async def test_a_bad_kubeconfig_is_refused_with_field_reason_and_fix_and_stores_nothing(
    world: World, name: str
) -> None:
    body = {"name": "east", "kubeconfig": BAD[name]}
    answer = await world.server.http.post("/api/v1/clusters", json=body)
    assert 400 <= answer.status_code < 500, answer.text
    problem = answer.json()
    assert problem["detail"]
    assert problem["fix"]
    assert problem["field"].startswith("kubeconfig"), problem
    assert "s3cr3t-token-of-mine" not in answer.text
    names = [each["name"] for each in (await world.ask("GET", "/clusters"))["items"]]
    assert names == ["sim"]
    assert (await world.ask("GET", "/runs?kind=cluster.register"))["items"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": "East", "kubeconfig": "x"}, "name"),
        ({"name": "east"}, "kubeconfig"),
        ({"name": "east", "kubeconfig": 5}, "kubeconfig"),
        ({"name": "east", "kubeconfig": "x", "role": "boss"}, "role"),
        ({"name": "east", "kubeconfig": "x", "admission": "none"}, "admission"),
        ({"name": "east", "kubeconfig": "x", "platform": "MOON"}, "platform"),
        ({"name": "east", "kubeconfig": "x", "ingress_url": "ftp://x"}, "ingress_url"),
        ({"name": "east", "kubeconfig": "x", "colour": "red"}, "colour"),
        ({"name": "sim", "kubeconfig": "x"}, "name"),
    ],
)
async def test_a_field_that_cannot_hold_is_named(
    world: World, body: dict[str, Any], field: str
) -> None:
    answer = await world.server.http.post("/api/v1/clusters", json=body)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["field"] == field


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"configuration": "x"}, "cluster_create_request"),
        ({"cluster_create_request": "{"}, "cluster_create_request"),
        ({"cluster_create_request": '{"name": "east"}'}, "kubeconfig"),
        ({"cluster_create_request": '{"name": "east"}', "other": "x"}, "other"),
    ],
)
async def test_a_form_that_is_not_whole_is_refused(
    world: World, parts: dict[str, str], field: str
) -> None:
    files = {name: (None, value) for name, value in parts.items()}
    answer = await world.server.http.post("/api/v1/clusters", files=files)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["field"] == field


async def test_a_body_that_is_neither_json_nor_a_form_is_refused(world: World) -> None:
    answer = await world.server.http.post(
        "/api/v1/clusters", content=b"x", headers={"Content-Type": "text/plain"}
    )
    assert answer.status_code == 415


async def test_a_cluster_that_was_not_registered_is_not_deleted(tmp_path: Path) -> None:
    async with inside(tmp_path) as it:
        refused = await it.client.delete("/clusters/demo")
        assert (refused.status_code, refused.json()["code"]) == (409, "cluster_busy")
        assert (await it.client.get("/clusters/demo")).json()["state"] == "AVAILABLE"


async def test_the_eleventh_registration_within_a_minute_is_told_when_to_come_back(
    tmp_path: Path,
) -> None:
    async with inside(tmp_path) as it:
        unreadable = {"name": "east", "kubeconfig": "{"}
        for _ in range(15):  # what reaches out to nobody is not counted
            assert (await it.client.post("/clusters", json=unreadable)).status_code == 422
        assert (await it.client.post("/clusters", json={"name": "east"})).status_code == 422
        body = {"name": "east", "kubeconfig": text_of()}
        # At once: one more is allowed every 6 s, which a full machine may take for a few of them.
        answers = await asyncio.gather(*(it.client.post("/clusters", json=body) for _ in range(11)))
        assert sorted(answer.status_code for answer in answers) == [*[422] * 10, 429]
        [refused] = [answer for answer in answers if answer.status_code == 429]
        assert refused.json()["code"] == "rate_limit"
        assert 1 <= int(refused.headers["Retry-After"]) <= 6
        assert (await it.client.get("/clusters")).status_code == 200


async def test_an_empty_kubeconfig_is_called_empty(world: World) -> None:
    for text in ("", " \n"):
        body = {"name": "east", "kubeconfig": text}
        problem = (await world.server.http.post("/api/v1/clusters", json=body)).json()
        assert (problem["field"], problem["errors"][0]["reason"]) == (
            "kubeconfig", "The kubeconfig is empty.",
        )  # fmt: skip
        assert "kubectl config view" in problem["fix"]


async def test_how_services_are_exposed_and_reports_kept_is_set_and_shown(world: World) -> None:
    before = await world.ask("GET", "/clusters/sim")
    assert (before["expose"], before["report_image"]) == ("asked", "")
    body = {"expose": "all", "report_image": "busybox:1.36"}
    changed = await world.ask("PATCH", "/clusters/sim", json=body)
    assert {name: changed[name] for name in body} == body
    kept = await world.ask("PATCH", "/clusters/sim", json={"report_image": ""})
    assert (kept["expose"], kept["report_image"]) == ("all", "")
    for name, value in (("expose", "some"), ("report_image", "a b")):
        refused = await world.ask("PATCH", "/clusters/sim", 422, json={name: value})
        assert refused["field"] == name


async def test_keys_are_shown_once_and_taken_back(world: World) -> None:
    issued = await world.ask("POST", "/clusters/sim/keys", 201)
    assert issued["key"].startswith(issued["hint"])
    listed = (await world.ask("GET", "/clusters/sim/keys"))["items"]
    assert [(each["id"], each["key"]) for each in listed] == [(issued["id"], None)]
    await world.ask("DELETE", f"/clusters/sim/keys/{issued['id']}")
    listed = (await world.ask("GET", "/clusters/sim/keys"))["items"]
    assert listed[0]["revoked_at"] is not None
    gone = await world.ask("DELETE", f"/clusters/sim/keys/{issued['id']}", 404)
    assert gone["code"] == "cluster_key_not_found"


async def test_attributes_and_masters_are_changed_and_told(world: World) -> None:
    body = {"attributes": {"region": "eu"}, "enable_master_node": True, "role": "manager"}
    changed = await world.ask("PATCH", "/clusters/sim", json=body)
    assert {name: changed[name] for name in body} == body
    events = (await world.ask("GET", "/events?kind=cluster.changed"))["items"]
    assert len(events) == 1
    await world.ask("PATCH", "/clusters/sim", json=body)
    assert len((await world.ask("GET", "/events?kind=cluster.changed"))["items"]) == 1
