"""Refuses what is no JSON we could mean, before anything reads it.

Depth, NaN, NUL, bad UTF-8, and names given twice, of which a parser would keep one in silence.
"""

import json
from collections import Counter
from typing import Any

import msgspec

from gpuplane.kit.depths import is_deeper, parts_of
from gpuplane.kit.errors import InvalidInput


def read_json(body: bytes, max_depth: int) -> Any:
    """Return what a body says, once it is JSON that every part behind can hold.

    Raises:
        InvalidInput: If it is not; the sentence says what is wrong where.
    """
    try:
        value = msgspec.json.decode(body)
    except RecursionError as error:
        raise _too_deep(max_depth) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"The body is not UTF-8 (byte {error.start}).",
            code="invalid_encoding",
            fix="Send JSON in UTF-8.",
        ) from error
    except msgspec.MsgspecError as error:
        raise InvalidInput(
            f"The body is not valid JSON: {error}.",
            code="invalid_json",
            fix="Check brackets and quotes; NaN and Infinity are no JSON.",
        ) from error
    if body.count(b"[") + body.count(b"{") > max_depth and is_deeper(value, max_depth):
        raise _too_deep(max_depth)
    if b"\\u0000" in body:
        _check_nul(value)
    return json.loads(body, object_pairs_hook=_without_doubles)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
    raise InvalidInput(
        f"The field {twice[:100]!r} is given more than once in one object.",
        code="duplicate_field",
        field=twice[:100],
        fix="Give it once.",
    )


def _check_nul(value: object) -> None:
    rest: list[object] = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str) and "\x00" in one:
            raise InvalidInput(
                "Text in the body contains the NUL character.",
                code="invalid_text",
                fix="Remove \\u0000.",
            )
        if isinstance(one, dict):
            rest.extend(one)
        rest.extend(parts_of(one))


def _too_deep(max_depth: int) -> InvalidInput:
    return InvalidInput(
        f"The body nests deeper than {max_depth} levels.",
        code="too_deep",
        fix="Flatten it.",
    )
