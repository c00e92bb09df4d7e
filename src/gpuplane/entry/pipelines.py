"""Puts together what steps of pipelines work with: catalogue, channels, mail, jobs' bodies."""

import email.message
import email.utils
import json
import smtplib
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from pydantic import ValidationError

from gpuplane.domains.jobs.schemas.incoming import JobIn
from gpuplane.domains.jobs.schemas.reading import spec_of
from gpuplane.domains.jobs.service import SubmitLimits
from gpuplane.domains.pipelines.service import Catalogue, Channels
from gpuplane.domains.pipelines.steps import JobAsk, StepTools
from gpuplane.entry.described import SettingsError
from gpuplane.entry.settings import PipelineSettings
from gpuplane.kit.problems import refused_fields
from gpuplane.kit.yaml_texts import PlainLoader

MAIL_TIMEOUT_S = 20
CATALOGUE_FIELDS = frozenset({"components", "models", "services", "channels"})


def read_job(body: Mapping[str, Any]) -> JobAsk:
    """Return what a job's body asks, read as the API of jobs reads it.

    Raises:
        ProductError: If a field cannot hold; names it.
    """
    try:
        asked = JobIn.model_validate(dict(body))
    except ValidationError as error:
        raise refused_fields(error.errors(include_url=False), JobIn) from error
    cluster = str(asked.cluster_id) if asked.cluster_id is not None else asked.cluster
    array = asked.array
    return JobAsk(
        spec_of(asked),
        cluster,
        None if array is None else array.size,
        None if array is None else array.limit,
    )


def make_step_tools(settings: PipelineSettings, limits: SubmitLimits, **parts: Any) -> StepTools:
    """Return what steps work with.

    Args:
        settings: The settings of pipelines.
        limits: Limits of submits.
        parts: Database, clock, client and sealing keys of this process.
    """
    return StepTools(
        **parts,
        read_job=read_job,
        submit_limits=limits,
        catalogue=load_catalogue(settings.catalogue),
        channels=Channels(
            slack_url=settings.slack_url,
            pagerduty_key=settings.pagerduty_key,
            pagerduty_url=settings.pagerduty_url,
            has_mail=bool(settings.smtp_url and settings.mail_from),
        ),
        allowed_hosts=words(settings.allowed_hosts),
        folders=words(settings.folders),
        response_bytes=settings.response_bytes,
        function_network=settings.network,
        send_mail=make_sender(settings.smtp_url, settings.mail_from),
    )


def words(text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated text."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def load_catalogue(path: str) -> Catalogue:
    """Return the catalogue that a file describes, an empty one without a path.

    Raises:
        SettingsError: If the file cannot be read or is no catalogue.
    """
    if not path:
        return Catalogue()
    try:
        text = Path(path).read_text()
        is_json = path.endswith(".json")
        found = json.loads(text) if is_json else yaml.load(text, Loader=PlainLoader)  # a safe one
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"GPUPLANE_PIPELINES_CATALOGUE {path!r}: {error}.") from error
    if not isinstance(found, dict) or set(found) - CATALOGUE_FIELDS:
        known = ", ".join(sorted(CATALOGUE_FIELDS))
        raise SettingsError(
            f"GPUPLANE_PIPELINES_CATALOGUE {path!r} is no catalogue. It has the fields {known}."
        )
    return Catalogue(
        components=found.get("components") or {},
        models=found.get("models") or {},
        services=found.get("services") or {},
        channels=frozenset(found.get("channels") or ()),
    )


def make_sender(url: str, sender: str) -> Callable[[tuple[str, ...], str, str], int] | None:
    """Return what sends a mail by the server of a URL, None without one.

    What is sent returns how many recipients the server took it for; it raises OSError where the
    server took it for nobody, and ValueError for recipients that are no addresses.

    Raises:
        SettingsError: If the URL is none of a mail server.
    """
    if not url or not sender:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("smtp", "smtps", "smtp+starttls") or not parts.hostname:
        raise SettingsError(
            "GPUPLANE_PIPELINES_SMTP_URL is written like smtp+starttls://user:password@host:587."
        )
    port = parts.port or {"smtps": 465, "smtp+starttls": 587}.get(parts.scheme, 25)
    host, user, password = parts.hostname, parts.username, parts.password

    def send(recipients: tuple[str, ...], subject: str, text: str) -> int:
        message = email.message.EmailMessage()
        message["Date"] = email.utils.formatdate()
        message["Message-ID"] = email.utils.make_msgid(domain="gpuplane.invalid")
        message["From"], message["To"] = sender, ", ".join(recipients)
        message["Subject"] = " ".join(subject.split())
        message.set_content(text)
        context = ssl.create_default_context()
        if parts.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                host, port, timeout=MAIL_TIMEOUT_S, context=context
            )
        else:
            server = smtplib.SMTP(host, port, timeout=MAIL_TIMEOUT_S)
        with server:
            if parts.scheme == "smtp+starttls":
                server.starttls(context=context)
            if user:
                server.login(unquote(user), unquote(password or ""))
            try:
                return len(recipients) - len(server.send_message(message))
            except smtplib.SMTPException as error:
                raise OSError(f"the mail server refused: {error}") from error

    return send
