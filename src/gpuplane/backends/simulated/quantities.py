"""Reads the amounts that people write in a fleet file: cores, bytes, durations, money.

Owns the spellings; answers in the product's exact units or says what it expected instead.
"""

import re
from decimal import Decimal, InvalidOperation

from gpuplane.core.amounts import cores_to_milli, money_to_micro
from gpuplane.core.quantities import SUFFIXES

MAX_DURATION_MS = 100 * 365 * 86_400_000
"""A hundred years: beyond it a number in a file is a mistake."""
MAX_MEMORY_MIB = 1 << 30
"""A pebibyte: more than any node has."""
MAX_CORES = Decimal(4096)
MAX_PRICE = Decimal(1_000_000)

_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_DURATION = re.compile(
    r"(?:(?P<d>\d{1,6})d)?(?:(?P<h>\d{1,6})h)?(?:(?P<m>\d{1,6})m(?!s))?"
    r"(?:(?P<s>\d{1,9}(?:\.\d{1,3})?)s)?(?:(?P<ms>\d{1,9})ms)?"
)
_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}


class QuantityError(ValueError):
    """An amount cannot be read; `fix` says what to write."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


def parse_cpu_milli(value: object) -> int:
    """Return CPU cores (`8`, `0.5`, `500m`) as thousandths of a core."""
    fix = "write a number of cores such as 96, or thousandths such as 500m"
    if isinstance(value, str) and value.endswith("m"):
        cores = _decimal(value[:-1], fix) / 1000
    else:
        cores = _decimal(value, fix)
    if not 0 < cores <= MAX_CORES:
        raise QuantityError(f"{value} cores is out of range", f"{fix}, at most {MAX_CORES}")
    return cores_to_milli(cores)


def parse_memory_mib(value: object) -> int:
    """Return a Kubernetes byte quantity (`512Gi`, `2T`, a number of bytes) as MiB, rounded down."""
    fix = "write a quantity with its unit such as 512Gi"
    text = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{_shown(value)} is not an amount of bytes", fix)
    mib = int(Decimal(match.group(1)) * SUFFIXES[match.group(2) or ""] / SUFFIXES["Mi"])
    if not 0 < mib <= MAX_MEMORY_MIB:
        raise QuantityError(f"{value} is {mib} MiB, out of range", f"{fix}, at least 1Mi")
    return mib


def parse_duration_ms(value: object) -> int:
    """Return a duration (`90s`, `1h30m`, `2d`, `250ms`, a number of seconds) in milliseconds."""
    fix = "write a duration such as 90s, 10m, 1h30m or 2d"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        duration_ms = int(_decimal(value, fix) * 1000)
    else:
        match = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
        if match is None:
            raise QuantityError(f"{_shown(value)} is not a duration", fix)
        parts = match.groupdict()
        duration_ms = sum(
            int(Decimal(part) * _UNIT_MS[unit]) for unit, part in parts.items() if part
        )
    if not 0 <= duration_ms <= MAX_DURATION_MS:
        raise QuantityError(f"{value} is out of range", f"{fix}, at most a hundred years")
    return duration_ms


def parse_price_micro(value: object) -> int:
    """Return an amount of money as micro-units; more than six decimals are refused."""
    fix = "write an amount with at most six decimals such as 2.50"
    amount = _decimal(value, fix)
    if not 0 <= amount <= MAX_PRICE:
        raise QuantityError(f"a price of {value} is out of range", f"{fix}, from 0 to {MAX_PRICE}")
    micro = money_to_micro(amount)
    if Decimal(micro).scaleb(-6) != amount:
        raise QuantityError(f"a price of {value} is finer than a millionth", fix)
    return micro


def _decimal(value: object, fix: str) -> Decimal:
    """Return a number of the file exactly as it was written."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise QuantityError(f"{_shown(value)} is not a number", fix)
    try:
        number = Decimal(str(value))
    except InvalidOperation as error:
        raise QuantityError(f"{_shown(value)} is not a number", fix) from error
    if not number.is_finite():
        raise QuantityError(f"{_shown(value)} is not a finite number", fix)
    return number


def _shown(value: object) -> str:
    """Return a value short enough for a sentence."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
