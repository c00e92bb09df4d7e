"""Reads Kubernetes quantities (`96`, `500m`, `512Gi`, `1e3`) exactly.

Owns the spelling of apimachinery's `resource.Quantity`, the one table of its suffixes among it;
never rounds up what is offered or asked for.

Source: kubernetes/apimachinery, pkg/api/resource/quantity.go (the grammar).
"""

import re
from decimal import Decimal
from types import MappingProxyType

SUFFIXES = MappingProxyType(
    {
        "n": Decimal(10) ** -9,
        "u": Decimal(10) ** -6,
        "m": Decimal(10) ** -3,
        "": Decimal(1),
        "k": Decimal(10) ** 3,
        "M": Decimal(10) ** 6,
        "G": Decimal(10) ** 9,
        "T": Decimal(10) ** 12,
        "P": Decimal(10) ** 15,
        "E": Decimal(10) ** 18,
        "Ki": Decimal(2) ** 10,
        "Mi": Decimal(2) ** 20,
        "Gi": Decimal(2) ** 30,
        "Ti": Decimal(2) ** 40,
        "Pi": Decimal(2) ** 50,
        "Ei": Decimal(2) ** 60,
    }
)
"""What each suffix multiplies by."""
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))"
    r"(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?"
)


class BadQuantity(ValueError):
    """A text is no Kubernetes quantity."""


def parse_quantity(value: object) -> Decimal:
    """Return a quantity as an exact number in its base unit (cores, bytes, devices).

    Args:
        value: Text such as `500m`, `64Gi`, `1e3`, or a number.

    Raises:
        BadQuantity: If it is none.
    """
    is_number = isinstance(value, str | int | float) and not isinstance(value, bool)
    match = _QUANTITY.fullmatch(str(value).strip()) if is_number else None
    if match is None:
        raise BadQuantity(f"{str(value)[:60]!r} is not a Kubernetes quantity")
    number, suffix, exponent = match.groups()
    scale = Decimal(10) ** int(exponent) if exponent else SUFFIXES[suffix or ""]
    return Decimal(number) * scale


def milli_of(value: object) -> int:
    """Return a quantity in thousandths, rounded down: cores as milli-CPU."""
    return int(parse_quantity(value) * 1000)


def mib_of(value: object) -> int:
    """Return a quantity of bytes as MiB, rounded down."""
    return int(parse_quantity(value) / SUFFIXES["Mi"])


def count_of(value: object) -> int:
    """Return a quantity of whole things, rounded down."""
    return int(parse_quantity(value))
