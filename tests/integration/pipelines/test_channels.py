"""E-mail and PagerDuty against real receivers: a mail server and an HTTP server on loopback."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email
import email.policy
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import pytest

from gpuplane.kit.sealing import SealingKeys
from tests.accepting import accepting
from tests.integration.pipelines.worlds import (
    Receiver,
    World,
    a_pipeline,
    a_step,
    working_world,
)


@dataclass
class MailServer:
    """A small SMTP server: keeps what came, and refuses whom it is told to."""

    port: int = 0
    refused: tuple[str, ...] = ()
    logins: list[str] = field(default_factory=list)
    mails: list[tuple[list[str], EmailMessage]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Talk to one client until it leaves."""
        writer.write(b"220 mail.test\r\n")
        to: list[str] = []
        while line := await reader.readline():
            text = line.decode().strip()
            word = text.split(" ")[0].upper()
            if word == "EHLO":
                answer = "250-mail.test\r\n250 AUTH PLAIN"
            elif word == "AUTH":
                self.logins.append(base64.b64decode(text.split(" ")[2]).decode())
                answer = "235 good"
            elif word == "RCPT":
                address = text.partition("<")[2].partition(">")[0]
                answer = "550 unknown" if address in self.refused else "250 good"
                to += [address] if answer.startswith("250") else []
            elif word == "DATA":
                writer.write(b"354 go on\r\n")
                raw = await reader.readuntil(b"\r\n.\r\n")
                found = email.message_from_bytes(
                    raw[:-3].replace(b"\r\n..", b"\r\n."), policy=email.policy.default
                )
                self.mails.append((to, cast("EmailMessage", found)))
                to, answer = [], "250 taken"
            else:
                answer = "221 bye" if word == "QUIT" else "250 good"
            writer.write(f"{answer}\r\n".encode())
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            if word == "QUIT":
                break
        writer.close()


@contextlib.asynccontextmanager
async def listening(served: Any) -> AsyncIterator[Any]:
    """Serve on a port of this machine, which the one who serves is told."""
    async with accepting(served.serve) as served.port:
        yield served


@contextlib.asynccontextmanager
async def mailing(
    folder: Path, sealing: SealingKeys, server: MailServer, scheme: str = "smtp"
) -> AsyncIterator[World]:
    """Start a world whose mail goes to a server."""
    url = f"{scheme}://us%65r:p%40ss@127.0.0.1:{server.port}"
    async with working_world(folder, sealing, smtp_url=url, mail_from="gp@test.example") as world:
        yield world


def a_mail(*recipients: str, **more: Any) -> dict[str, Any]:
    return a_pipeline(
        a_step("mail", "notification", channel="email", recipients=list(recipients),
               message="Loss is {{ params.loss }}.\n.\nBye, Grüße", **more),
        parameters={"loss": 0.5},
    )  # fmt: skip


async def test_a_mail_reaches_everybody_whom_the_server_takes_it_for(
    tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with listening(MailServer(refused=("gone@x.example",))) as server, \
            mailing(tmp_path, sealing_keys, server) as world:  # fmt: skip
        sent = a_mail("a@x.example", "gone@x.example", "b@x.example", severity="error",
                      subject="Training\nBcc: everybody@x.example")  # fmt: skip
        ended = await world.run(sent)
        assert ended.status == "completed", ended.run
        assert ended.output("mail")["delivered"] == 2
        ((to, mail),) = server.mails
        assert to == ["a@x.example", "b@x.example"]
        assert mail["From"] == "gp@test.example"
        assert mail["Subject"] == "[error] Training Bcc: everybody@x.example"
        assert mail["Bcc"] is None
        assert mail["Date"]
        assert mail["Message-ID"]
        lines = mail.get_content().splitlines()
        assert lines == ["Loss is 0.5.", ".", "Bye, Grüße"]
        assert server.logins == ["\0user\0p@ss"]


async def test_a_mail_that_nobody_gets_fails_its_step(
    tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    once = {"retry": {"attempts": 1}}
    async with listening(MailServer(refused=("a@x.example",))) as server, \
            mailing(tmp_path, sealing_keys, server) as world:  # fmt: skip
        for recipients, word in (
            (["a@x.example"], "Unreachable"), (["a@x.example\nBcc: b@x.example"], "BadMessage"),
            (["{{ '' }}"], "NoRecipients"),
        ):  # fmt: skip
            ended = await world.run(a_mail(*recipients, **once))
            assert (ended.status, ended.steps["mail"]["error"]) == ("failed", word), ended.run
        assert server.mails == []


async def test_a_mail_is_not_sent_in_clear_where_it_is_to_be_encrypted(
    tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with listening(MailServer()) as server, \
            mailing(tmp_path, sealing_keys, server, "smtp+starttls") as world:  # fmt: skip
        ended = await world.run(a_mail("a@x.example", retry={"attempts": 1}))
        assert ended.steps["mail"]["error"] == "Unreachable"
        assert "STARTTLS" in ended.steps["mail"]["message"]
        assert (server.mails, server.logins) == ([], [])


@pytest.mark.parametrize("answers", [[(202, {"status": "success"})], [(429, {}), (202, {})]])
async def test_pagerduty_is_told_once_however_often_it_is_tried(
    tmp_path: Path, sealing_keys: SealingKeys, answers: list[Any]
) -> None:
    async with listening(Receiver()) as pager:
        pager.answers = list(answers)
        told = {"pagerduty_key": "routing-key", "pagerduty_url": f"{pager.url}/v2/enqueue"}
        async with working_world(tmp_path, sealing_keys, **told) as world:
            page = a_step("page", "notification", channel="pagerduty", subject="nightly",
                          message="m" * 2_000, severity="critical",
                          retry={"attempts": 3, "delay_seconds": 0})  # fmt: skip
            ended = await world.run(a_pipeline(page))
            assert ended.status == "completed", ended.run
        bodies = [each.body for each in pager.seen]
        assert [each.path for each in pager.seen] == ["/v2/enqueue"] * len(answers)
        assert len({body["dedup_key"] for body in bodies}) == 1
        body = bodies[-1]
        assert len(body["dedup_key"]) <= 255
        assert (body["routing_key"], body["event_action"]) == ("routing-key", "trigger")
        payload = body["payload"]
        assert (payload["severity"], payload["source"]) == ("critical", "nightly")
        assert len(payload["summary"]) == 1_024
        assert payload["custom_details"]["run_id"] == ended.run["id"]


async def test_pagerduty_that_refuses_the_key_fails_the_step(
    tmp_path: Path, sealing_keys: SealingKeys
) -> None:
    async with listening(Receiver()) as pager:
        pager.answers = [(400, {"status": "invalid event"})]
        told = {"pagerduty_key": "wrong", "pagerduty_url": pager.url}
        async with working_world(tmp_path, sealing_keys, **told) as world:
            page = a_step("page", "notification", channel="pagerduty", message="m",
                          retry={"attempts": 1})  # fmt: skip
            ended = await world.run(a_pipeline(page))
            step = ended.steps["page"]
            assert (ended.status, "answered 400" in step["message"]) == ("failed", True)
