"""How a network's range is cut: a private subnet for each zone, a small one for the way out.

Owns the arithmetic alone; pure.
"""

import ipaddress

MAX_ZONES = 6
"""An eighth for each zone leaves the last eighth for what is public."""


def private_range(cidr: str, index: int) -> str:
    """Return the range of a zone's private subnet: the index-th eighth."""
    return str(list(ipaddress.IPv4Network(cidr).subnets(prefixlen_diff=3))[index])


def public_range(cidr: str) -> str:
    """Return the range of the public subnet: a 32nd of the last eighth, at least a /27."""
    last = list(ipaddress.IPv4Network(cidr).subnets(prefixlen_diff=3))[-1]
    return str(next(last.subnets(new_prefix=min(27, last.prefixlen + 5))))
