"""Addresses of charts: whether one lies below a place. Pure; never looks whether it answers."""

from collections.abc import Iterable


def is_below_any(address: str, places: Iterable[str]) -> bool:
    """Return whether an address is one of these places or lies below one; hosts are taken whole."""
    for each in places:
        place = each.rstrip("/")
        if place and (address.rstrip("/") == place or address.startswith(f"{place}/")):
            return True
    return False
