"""Splits an expression into tokens: those of CEL, and the words and signs of Jinja's forms."""

import re
from dataclasses import dataclass

from gpuplane.domains.pipelines.expressions.problems import ExpressionError, Kind

MAX_SOURCE = 16_384
"""Characters of one expression."""

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*)
  | (?P<number>0[xX][0-9a-fA-F]+[uU]?|(?:[0-9]+\.[0-9]+|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?[uU]?)
  | (?P<string>[rRbB]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''
      |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>\*\*|==|!=|<=|>=|&&|\|\||[-+*/%~<>=!?:.,()\[\]{}|])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL
)
_ESCAPES = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "`": "`", "?": "?", "/": "/",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its kind (`number string word sign end`), its text and where it begins."""

    kind: str
    text: str
    at: int
    value: object = None


def read_tokens(source: str) -> list[Token]:
    """Return the tokens of an expression and an `end`.

    Raises:
        ExpressionError: At the first sign that begins no token.
    """
    if len(source) > MAX_SOURCE:
        raise ExpressionError(
            f"An expression has at most {MAX_SOURCE} characters, not {len(source)}.",
            0,
            Kind.BUDGET,
            "Do the work in a FUNCTION step.",
        )
    tokens: list[Token] = []
    at = 0
    while at < len(source):
        found = _TOKEN.match(source, at)
        if found is None:
            raise ExpressionError(*_unknown_sign(source, at))
        kind, text = str(found.lastgroup), found.group()
        if kind == "number":
            tokens.append(Token(kind, text, at, _number(text, at)))
        elif kind == "string":
            tokens.append(Token(kind, text, at, _string(text, at)))
        elif kind != "space":
            tokens.append(Token(kind, text, at))
        at = found.end()
    return [*tokens, Token("end", "", len(source))]


def _unknown_sign(source: str, at: int) -> tuple[str, int, Kind, str]:
    sign = source[at]
    if sign in "'\"":
        return "The text has no end.", at, Kind.SYNTAX, f"Close it with {sign}."
    return f"{sign!r} means nothing here.", at, Kind.SYNTAX, "Remove it, or put text in quotes."


def _number(text: str, at: int) -> int | float:
    plain = text.rstrip("uU")
    if plain[:2].lower() == "0x":
        value: int | float = int(plain, 16)
    elif any(sign in plain for sign in ".eE"):
        value = float(plain)
        if value in (float("inf"), float("-inf")):
            raise ExpressionError("The number is too large.", at, Kind.SYNTAX, "Write a smaller.")
        return value
    else:
        value = int(plain) if len(plain) < 30 else 2**64
    if value >= 2**63 + 1:  # -9223372036854775808 is a number, its digits alone are not
        raise ExpressionError(
            "The number does not fit into 64 bits.", at, Kind.SYNTAX, "Write it as text or as 1e20."
        )
    return value


def _string(text: str, at: int) -> str | bytes:
    start = min(text.index(sign) for sign in ("'", '"') if sign in text)
    prefix, body = text[:start].lower(), text[start:]
    quotes = 3 if body[:3] in ('"""', "'''") and len(body) >= 6 else 1
    inner = body[quotes:-quotes]
    if "b" in prefix:
        return inner.encode() if "r" in prefix else _bytes(inner, at)
    return inner if "r" in prefix else _ESCAPE.sub(lambda found: _escape(found, at), inner)


def _bytes(inner: str, at: int) -> bytes:
    """Return bytes: text as UTF-8, and a byte for each number that is escaped."""
    parts: list[bytes] = []
    place = 0
    for found in _ESCAPE.finditer(inner):
        parts.append(inner[place : found.start()].encode())
        code = int(found[1], 16) if found[1] else int(found[4], 8) if found[4] else None
        if found[2] or found[3] or (code is not None and code > 0xFF):
            raise ExpressionError(
                "No byte has this number.", at, Kind.SYNTAX, "Write \\x and two digits."
            )
        parts.append(_escape(found, at).encode() if code is None else bytes([code]))
        place = found.end()
    return b"".join([*parts, inner[place:].encode()])


def _escape(found: re.Match[str], at: int) -> str:
    hexadecimal = found[1] or found[2] or found[3]
    if hexadecimal or found[4]:
        code = int(hexadecimal, 16) if hexadecimal else int(found[4], 8)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise ExpressionError("No character has this number.", at, Kind.SYNTAX)
        return chr(code)
    if found[5] not in _ESCAPES:
        raise ExpressionError(
            f"\\{found[5]} is no escape.", at, Kind.SYNTAX, "Write \\\\ for a backslash."
        )
    return _ESCAPES[found[5]]
