"""NOTIFICATION: a message to people by a channel that is set up."""

import asyncio
import hashlib
import json
from typing import Any

import httpx2

from gpuplane.core.runs.plans import Answer, Completed, Failed, StepCall
from gpuplane.domains.pipelines.documents.configs import NotificationConfig
from gpuplane.domains.pipelines.rules import HOW_TO_SET_UP
from gpuplane.domains.pipelines.steps.calling import send
from gpuplane.domains.pipelines.steps.names import rendered
from gpuplane.domains.pipelines.steps.tools import StepTools
from gpuplane.kit.outbound import TargetRefused

TIMEOUT_S = 15.0
_COLOURS = {"info": "#2eb886", "warning": "#daa038", "error": "#cc0000", "critical": "#cc0000"}


class Notifications:
    """The handler of NOTIFICATION."""

    def __init__(self, tools: StepTools) -> None:
        self._tools = tools

    async def __call__(self, call: StepCall) -> Answer:
        """Send the message; answer whom it went to."""
        config = rendered(call, NotificationConfig)
        recipients = _recipients(config.recipients)
        kept = {"message": config.message, "channel": config.channel, "recipients": recipients}
        if config.channel in self._tools.catalogue.channels:
            return Completed({**kept, "delivered": 0}, message="A stand-in took the message.")
        if not self._tools.channels.has(config.channel):
            return Failed(
                "ChannelNotConfigured",
                f"The channel {config.channel} is not set up. {HOW_TO_SET_UP[config.channel]}",
                is_final=True,
            )
        if config.channel == "email" and not recipients:
            return Failed("NoRecipients", "An e-mail needs recipients.", is_final=True)
        try:
            count = await self._send(call, config, recipients)
        except TimeoutError:
            return Failed("Timeout", f"No answer within {TIMEOUT_S:g} s.")
        except TargetRefused as refusal:
            return Failed("AddressRefused", str(refusal), is_final=True)
        except (httpx2.HTTPError, OSError, UnicodeError) as failure:
            return Failed("Unreachable", f"{type(failure).__name__}: {failure}"[:500])
        except ValueError as error:  # a recipient of several lines, and the like
            return Failed(
                "BadMessage", f"The message cannot be sent: {error}."[:500], is_final=True
            )
        return Completed({**kept, "delivered": count})

    async def _send(self, call: StepCall, config: NotificationConfig, recipients: list[str]) -> int:
        title = config.subject or str(call.context.get("pipeline") or "gpuplane")
        if config.channel == "email":
            mail = self._tools.send_mail
            assert mail is not None, "a channel that is not set up was refused before"
            subject = f"[{config.severity}] {title}"
            return await asyncio.to_thread(mail, tuple(recipients), subject, config.message)
        if config.channel == "slack":
            for recipient in recipients or [""]:
                await self._post(call, self._tools.channels.slack_url, _slack(config, recipient))
            return max(len(recipients), 1)
        if config.channel == "pagerduty":
            channels = self._tools.channels
            body = _pagerduty(call, config, channels.pagerduty_key, title)
            await self._post(call, channels.pagerduty_url, body)
            return 1
        payload = {
            "message": config.message,
            "severity": config.severity,
            "subject": title,
            "run_id": str(call.run_id),
            "step": call.key,
        }
        for recipient in recipients:
            await self._post(call, recipient, payload)
        return len(recipients)

    async def _post(self, call: StepCall, url: str, body: dict[str, Any]) -> None:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "gpuplane-pipelines",
            "Idempotency-Key": call.idempotency_key,
        }
        content = json.dumps(body).encode()
        answered = await send(self._tools, "POST", url, headers, content, TIMEOUT_S)
        if not 200 <= answered.status < 300:
            raise OSError(f"the channel answered {answered.status}")


def _recipients(given: list[str] | str) -> list[str]:
    if isinstance(given, str):
        return [part.strip() for part in given.split(",") if part.strip()]
    return [recipient for recipient in given if recipient.strip()]


def _slack(config: NotificationConfig, recipient: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "text": config.message,
        "attachments": [
            {"color": _COLOURS[config.severity], "text": config.subject or config.severity}
        ],
    }
    return {**body, "channel": recipient} if recipient else body


def _pagerduty(call: StepCall, config: NotificationConfig, key: str, title: str) -> dict[str, Any]:
    return {
        "routing_key": key,
        "event_action": "trigger",
        "dedup_key": f"{call.step_id}-{hashlib.sha256(call.idempotency_key.encode()).hexdigest()}",
        "payload": {
            "summary": config.message[:1_024],
            "source": title,
            "severity": config.severity,
            "custom_details": {"run_id": str(call.run_id), "step": call.key},
        },
    }
