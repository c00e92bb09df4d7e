"""Bytes: made of text as UTF-8 and of base64, and made into them."""

import base64
from typing import Any

from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind
from gpuplane.domains.pipelines.expressions.values import Meter, kind_of


def text_of(meter: Meter, at: int, value: bytes) -> str:
    """Return bytes as text; ExpressionError if they are no UTF-8."""
    meter.make(at, len(value))
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ExpressionError("The bytes are no UTF-8.", at, Kind.TYPE) from None


def to_bytes(meter: Meter, at: int, value: Any) -> bytes:
    """Return text as UTF-8, and bytes as they are."""
    if isinstance(value, bytes):
        return value
    text = _text(at, "bytes", value)
    meter.make(at, 4 * len(text))
    return text.encode("utf-8", "replace")


def to_base64(meter: Meter, at: int, value: Any) -> str:
    """Return bytes as base64."""
    if not isinstance(value, bytes):
        raise _wrong(at, "base64.encode", value)
    meter.make(at, 2 * len(value))
    return base64.b64encode(value).decode()


def from_base64(meter: Meter, at: int, value: Any) -> bytes:
    """Return the bytes of base64, with or without its padding."""
    text = _text(at, "base64.decode", value)
    meter.make(at, len(text))
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise ExpressionError("The text is no base64.", at, Kind.TYPE) from None


def _text(at: int, name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(at, name, value)
    return value


def _wrong(at: int, name: str, value: Any) -> ExpressionError:
    kind = kind_of(value).removesuffix("_type")
    return ExpressionError(f"{name} does not take {kind}.", at, Kind.TYPE, "Convert it first.")
