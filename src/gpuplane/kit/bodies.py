"""What every API body is made of: strict models, and the types that translate at the edge.

Inside, instants are integer milliseconds and money is integer micro-units; outside they are
RFC 3339 text and decimal text. Nothing here knows a domain.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import cache
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from fastapi import Query
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from gpuplane.kit.clock import instant_from_datetime, instant_to_text
from gpuplane.kit.pagination import DEFAULT_LIMIT, MAX_LIMIT, Page, PageRequest, decode_cursor

T = TypeVar("T")
Row = TypeVar("Row")

MICRO = 1_000_000
MAX_MICRO = 10**15
"""A thousand million units: what is larger is a slip of the keyboard, not an amount of money."""
MAX_INSTANT_MS = 253_370_764_800_000
"""The year 9999, the last that RFC 3339 can write, is left out: durations are added to instants."""
MAX_LABELS = 64
MAX_CURSOR_CHARS = 2_000

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def refusal(reason: str, fix: str = "") -> PydanticCustomError:
    """Return the error a validator raises: a whole sentence and what would mend it."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason, "fix": fix})


class Body(BaseModel):
    """The parent of every body: unknown fields are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="null")

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return this very body: it is frozen, and defaults are copied for each job otherwise."""
        return self

    @classmethod
    def checked(cls, **values: Any) -> Self:
        """Return a body of values that need no check, because they are stored ones.

        Every field is given under its own name. `model_construct`, which looks for aliases and
        defaults, takes four times as long, and a job is told in twelve bodies.

        Raises:
            KeyError: If a field is missing.
        """
        names, pick = _fields_of(cls)
        body = cls.__new__(cls)
        object.__setattr__(body, "__dict__", dict(zip(names, pick(values), strict=True)))
        object.__setattr__(body, "__pydantic_fields_set__", set(names))
        object.__setattr__(body, "__pydantic_extra__", None)
        object.__setattr__(body, "__pydantic_private__", None)
        return body


@cache
def _fields_of(
    kind: type[BaseModel],
) -> tuple[tuple[str, ...], Callable[[Mapping[str, Any]], tuple[Any, ...]]]:
    """Return the names of a body's fields in their order, and what takes their values."""
    names = tuple(kind.model_fields)
    if len(names) < 2:  # of one name, itemgetter returns no tuple
        return names, lambda values: tuple(values[name] for name in names)
    return names, itemgetter(*names)


class SecretBody(Body):
    """An answer that holds a secret shown once; its copy for replays is stored sealed."""

    holds_secret: ClassVar[bool] = True


class PageOut(Body, Generic[T]):
    """One page of a list; `next_cursor` is absent on the last page."""

    items: list[T]
    next_cursor: str | None = None

    @classmethod
    def of(cls, page: Page[Row], shape: Callable[[Row], T]) -> "PageOut[T]":
        """Return a page of rows as a page of bodies."""
        return cls(items=[shape(row) for row in page.items], next_cursor=page.next_cursor)


class Done(Body):
    """The answer of a verb that has nothing else to say."""

    done: bool = True


Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Rows on a page at most.")]
Cursor = Annotated[
    str | None,
    Query(max_length=MAX_CURSOR_CHARS, description="`next_cursor` of the page before."),
]


def page_request(
    limit: int = DEFAULT_LIMIT, cursor: str | None = None, *, sort: str
) -> PageRequest:
    """Return the page asked for in a list sorted by `sort`."""
    return PageRequest(limit, decode_cursor(cursor, sort))


def _check_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise refusal(
            "A name is 1 to 63 lower-case letters, digits and '-', and starts and ends with a "
            "letter or digit.",
            f"For example {_nearest_name(value)!r}.",
        )
    return value


def _nearest_name(value: str) -> str:
    cleaned = re.sub(r"[^a-z0-9]+", "-", value.lower())[:63].strip("-")
    return cleaned or "my-name"


def _check_text(value: str) -> str:
    if "\x00" in value:
        raise refusal("Text must not contain the NUL character.", "Remove it.")
    return value


def _read_instant(value: object) -> int:
    sentence = "An instant is written as RFC 3339 with a zone, such as 2026-05-01T09:00:00Z."
    if not isinstance(value, str) or len(value) > 40 or "T" not in value.upper():
        raise refusal(sentence, "Write date, time and zone.")
    try:
        instant = instant_from_datetime(datetime.fromisoformat(value))
    except (ValueError, OverflowError) as error:
        raise refusal(sentence, "Write date, time and zone (Z or an offset).") from error
    if not 0 <= instant <= MAX_INSTANT_MS:
        raise refusal("An instant lies between the years 1970 and 9998.", "Check the year.")
    return instant


def _read_money(value: object) -> int:
    sentence = "An amount of money is a decimal number with at most six decimals, such as 12.50."
    if isinstance(value, bool) or not isinstance(value, str | int | float) or len(str(value)) > 40:
        raise refusal(sentence, "Write it as text or as a number.")
    try:
        micro = Decimal(str(value)) * MICRO
        whole = int(micro)
    except (InvalidOperation, ValueError, OverflowError) as error:
        raise refusal(sentence, "Write it as text or as a number.") from error
    if micro != whole:
        raise refusal(sentence, "Round it to six decimals.")
    if not 0 <= whole <= MAX_MICRO:
        raise refusal("An amount of money lies between 0 and 1000000000.", "Check the amount.")
    return whole


def money_to_text(micro: int) -> str:
    """Return micro-units as decimal text with two to six decimals."""
    sign, amount = ("-" if micro < 0 else ""), abs(micro)
    decimals = f"{amount % MICRO:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}{amount // MICRO}.{decimals}"


def _check_labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise refusal(f"At most {MAX_LABELS} labels fit.", "Remove some.")
    for key, value in labels.items():
        prefix, slash, name = key.rpartition("/")
        if slash and (len(prefix) > 253 or not _LABEL_PREFIX.fullmatch(prefix)):
            raise refusal(f"The prefix of the label {key!r} is not a DNS name.")
        if not name or not _LABEL_VALUE.fullmatch(name):
            raise refusal(
                f"The label key {key!r} is not valid.",
                "Use up to 63 letters, digits, '-', '_' and '.', beginning and ending with a "
                "letter or digit.",
            )
        if not _LABEL_VALUE.fullmatch(value):
            raise refusal(
                f"The value of the label {key!r} is not valid.",
                "Use up to 63 letters, digits, '-', '_' and '.', beginning and ending with a "
                "letter or digit.",
            )
    return labels


def _name_schema() -> dict[str, Any]:
    return {
        "type": "string",
        "minLength": 1,
        "maxLength": 63,
        "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
    }


Name = Annotated[str, AfterValidator(_check_name), WithJsonSchema(_name_schema())]
"""A DNS-1123 label, as Kubernetes names most things."""

Text = Annotated[str, Field(max_length=1_000), AfterValidator(_check_text)]
"""A line or two for people."""

Integer = Annotated[int, Field(strict=True, ge=-(2**53), le=2**53)]
"""A whole number that every JSON reader keeps exact; text and true/false are refused."""

Count = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
"""A whole number from 0."""

Flag = Annotated[bool, Field(strict=True)]
"""true or false, nothing that looks like them."""

InstantIn = Annotated[
    int, BeforeValidator(_read_instant), WithJsonSchema({"type": "string", "format": "date-time"})
]
InstantOut = Annotated[
    int,
    PlainSerializer(instant_to_text, return_type=str),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
MoneyIn = Annotated[
    int,
    BeforeValidator(_read_money),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]{1,10}(\.[0-9]{1,6})?$"}),
]
MoneyOut = Annotated[
    int,
    PlainSerializer(money_to_text, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^-?[0-9]+\.[0-9]{2,6}$"}),
]
Labels = Annotated[
    dict[str, str],
    AfterValidator(_check_labels),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": "string", "maxLength": 63},
            "maxProperties": MAX_LABELS,
        }
    ),
]
"""Label keys and values by the rules of Kubernetes."""
