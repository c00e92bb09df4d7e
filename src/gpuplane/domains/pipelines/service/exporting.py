"""What an export leaves out of a document: values that look secret, wherever they stand.

Names of secrets stay, and so do expressions: an export can be imported again.
"""

import re
from typing import Any
from urllib.parse import unquote

SECRET_WORDS = ("password", "secret", "token", "api_key", "apikey", "credential", "private_key")
"""Parts of names whose values an export leaves out."""
NAMED = (
    ("spec", "triggers", "webhook", "secret"),
    ("spec", "triggers", "bucket", "notifications", "secret"),
    ("spec", "triggers", "bucket", "access_key"),
    ("spec", "triggers", "bucket", "secret_key"),
)
"""Fields of triggers that hold the name of a secret and no secret."""
_AROUND = frozenset({"spec", "steps", "branches", "config", "compensate"})
"""What stands around the headers of an API_CALL, however deep it lies."""

_EXPRESSION = re.compile(r"\{\{[^{}]*\}\}")
_USER = re.compile(r"://((?:\{\{[^{}]*\}\}|[^/?#\s{\"'<>])*)@")
_PAIR = re.compile(r"([?&;#])([^=?&;#/\s]{1,200})=((?:\{\{[^{}]*\}\}|[^&;#\s{$\"'`<>])+)")


def without_secrets(value: Any, path: tuple[str, ...] = ()) -> Any:
    """Return a document without values that look secret; references to secrets stay."""
    if isinstance(value, list):
        return [without_secrets(each, path) for each in value]
    if isinstance(value, str):
        is_address = "://" in value or path[-1:] == ("url",)
        return _without_secrets_of_urls(value) if is_address else value
    if not isinstance(value, dict):
        return value
    return {key: _kept(each, (*path, str(key))) for key, each in value.items()}


def _kept(value: Any, path: tuple[str, ...]) -> Any:
    if path in NAMED or _is_secret_header(path):
        return value
    return _masked(value, path) if _looks_secret(path[-1]) else without_secrets(value, path)


def _is_secret_header(path: tuple[str, ...]) -> bool:
    """Return whether this is the name of the secret that a header of an API_CALL holds."""
    return (
        path[-4:-2] == ("config", "headers")
        and path[-1] == "secret"
        and _AROUND.issuperset(path[:-3])
    )


def _looks_secret(key: str) -> bool:
    lowered = key.lower().replace("-", "_")
    return lowered == "authorization" or any(word in lowered for word in SECRET_WORDS)


def _masked(value: Any, path: tuple[str, ...]) -> Any:
    """Return nothing for a written value; what refers to a secret or a parameter stays."""
    is_reference = isinstance(value, str) and ("{{" in value or value == "")
    if isinstance(value, dict):
        if set(value) <= {"secret", "prefix"}:
            return value
        kept = {key: each for key, each in value.items() if key in ("type", "required", "enum")}
        return kept or without_secrets(value, path)
    if isinstance(value, list):
        return without_secrets(value, path)
    return value if is_reference or not isinstance(value, str) else ""


def _without_secrets_of_urls(text: str) -> str:
    """Return text whose addresses name nobody and whose queries hold no secret."""
    return _PAIR.sub(_without_value, _USER.sub(_without_user, text))


def _without_user(found: re.Match[str]) -> str:
    if not _EXPRESSION.sub("", found[1]).strip(":"):
        return found[0]
    if found.string[: found.start()].endswith(("http", "https")):
        return "://"
    name, colon, _ = found[1].partition(":")  # such as git@, which is no secret
    return f"://{name}{colon}@"


def _without_value(found: re.Match[str]) -> str:
    sign, name, value = found.groups()
    if not _looks_secret(unquote(name)) or not _EXPRESSION.sub("", value):
        return found[0]
    return f"{sign}{name}="
