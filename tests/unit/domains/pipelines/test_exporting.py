"""What an export leaves out, and what it keeps so that it can be imported again."""

from __future__ import annotations

from typing import Any

import pytest

from gpuplane.domains.pipelines.service import without_secrets


@pytest.mark.parametrize(
    ("url", "left"),
    [
        ("http://h/x?token=abcSECRET&n=1", "http://h/x?token=&n=1"),
        ("https://h/x?n=1&Api-Key=abc#top", "https://h/x?n=1&Api-Key=#top"),
        ("https://h/x?%74oken=abc", "https://h/x?%74oken="),
        ("https://h/#access_token=abc", "https://h/#access_token="),
        ("https://me:pw@h:8/x", "https://h:8/x"),
        ("https://abcTOKEN@h/x", "https://h/x"),
        ("https://{{ params.me }}:pw@h/x", "https://h/x"),
        ("postgres://me:p@w@h/db", "postgres://me:@h/db"),
        ("ssh://git@h/x", "ssh://git@h/x"),
        ("https://{{ params.me }}:{{ params.pw }}@h/x", None),
        ("https://h/x?token={{ params.token }}&n=1", None),
        ("{{ services.a }}/x?token=abc", "{{ services.a }}/x?token="),
        ("https://h/x?page=2&q=a@b", None),
        ("https://h/x?token=$TOKEN", None),
    ],
)
def test_secrets_in_an_address_are_left_out_and_expressions_stay(
    url: str, left: str | None
) -> None:
    assert without_secrets({"url": url}) == {"url": url if left is None else left}


def test_addresses_are_found_in_commands_and_code_which_stay_what_they_are() -> None:
    given = {
        "command": ["curl", "https://h/x?token=abc"],
        "code": 'def main(t):\n    return get("https://h/?token=" + t, f"http://h/?token={t}")',
    }
    assert without_secrets(given) == {**given, "command": ["curl", "https://h/x?token="]}


def test_names_of_secrets_stay_where_a_document_names_them_and_nowhere_else() -> None:
    headers = {"X-Signed": {"secret": "sign"}, "Cookie": "a"}
    step: dict[str, Any] = {"id": "a", "step_type": "api_call", "config": {"headers": headers}}
    loop = {"id": "b", "step_type": "loop", "config": {"range": 2, "steps": [step]}}
    hook = {"secret": "hook", "parameters": {"token": "abc"}}
    given = {
        "spec": {"steps": [step, loop], "triggers": [{"type": "event", "webhook": hook}]},
    }
    found = without_secrets(given)
    assert found["spec"]["steps"] == [step, loop]
    assert found["spec"]["triggers"][0]["webhook"] == {**hook, "parameters": {"token": ""}}
    body = {"headers": {"X": {"secret": "hunter2"}}}
    odd = {"spec": {"steps": [{"config": {"body": {"config": body}, "secret": "x"}}]}}
    told = without_secrets(odd)["spec"]["steps"][0]["config"]
    assert told == {"body": {"config": {"headers": {"X": {"secret": ""}}}}, "secret": ""}


@pytest.mark.parametrize("part", ["://", "://{{", "://{{ a }}", "?a=", "?token={{", "&a", "https"])
def test_a_long_text_of_nothing_but_signs_comes_back_as_it_is(part: str) -> None:
    text = "https://h/" + part * (60_000 // len(part))
    assert without_secrets({"url": text}) == {"url": text}
