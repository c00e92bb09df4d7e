"""Reads a multipart/form-data body: a few named parts, each as its bytes.

For endpoints that take a file beside their fields; everything else is JSON.
"""

import email.parser
import email.policy
from collections.abc import Callable, Collection
from email.message import EmailMessage
from typing import Any

from gpuplane.kit.errors import FieldError, InvalidInput, Unprocessable
from gpuplane.kit.problems import nearest

MAX_PARTS = 16
_FIX = "Send it as curl -F 'name=value' -F 'file=@path' does."


def is_form(content_type: bytes) -> bool:
    """Return whether a Content-Type is one of forms."""
    return content_type.split(b";")[0].strip().lower() == b"multipart/form-data"


def read_form(content_type: bytes, body: bytes, names: Collection[str]) -> dict[str, bytes]:
    """Return the parts of a form by their names.

    Raises:
        InvalidInput: If the body is no form.
        Unprocessable: If a part has a name that is not known, or one that came before.
    """
    try:
        return _read(content_type, body, names)
    except RecursionError:  # brackets in brackets of a header, which are read by recursion
        raise InvalidInput(
            "The body is no multipart form.", code="invalid_form", fix=_FIX
        ) from None


class _Leaf(EmailMessage):
    """A part, never looked into: a form in a part of a form would be read by recursion."""

    def get_content_type(self) -> str:
        return "application/octet-stream"

    def get_content_maintype(self) -> str:
        return "application"


def _make_messages() -> Callable[..., EmailMessage]:
    """Return what makes the whole first, and leaves from then on."""
    made: list[EmailMessage] = []

    def make(policy: Any) -> EmailMessage:
        made.append(_Leaf(policy=policy) if made else EmailMessage(policy=policy))
        return made[-1]

    return make


def _read(content_type: bytes, body: bytes, names: Collection[str]) -> dict[str, bytes]:
    head = b"MIME-Version: 1.0\r\nContent-Type: " + content_type + b"\r\n\r\n"
    policy = email.policy.HTTP.clone(message_factory=_make_messages())
    parsed = email.parser.BytesParser(policy=policy).parsebytes(head + body)
    if not parsed.is_multipart() or parsed.defects:
        raise InvalidInput("The body is no multipart form.", code="invalid_form", fix=_FIX)
    parts = list(parsed.iter_parts())
    if len(parts) > MAX_PARTS:
        raise InvalidInput(
            f"The form has more than {MAX_PARTS} parts.", code="invalid_form", fix=_FIX
        )
    found: dict[str, bytes] = {}
    for part in parts:
        name = str(part.get_param("name", "", header="content-disposition"))[:100]
        payload = part.get_payload(decode=True)
        if name not in names or name in found or not isinstance(payload, bytes):
            reason = "It came twice." if name in found else f"There is no part {name!r} here."
            fix = "" if name in found else nearest(name, names)
            raise Unprocessable(
                reason,
                code="invalid_field",
                field=name or None,
                fix=fix,
                errors=(FieldError(name, reason, fix),),
            )
        found[name] = payload
    return found
