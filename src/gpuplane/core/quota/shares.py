"""The dominant resource share: how far a node lives beyond its own quota.

Owns the share's value and its exact comparison. Kueue divides in float64; here the ratio is kept
as integers, so that two equal shares are equal.

Source: kubernetes-sigs/kueue, pkg/cache/scheduler/fair_sharing.go, and KEP-1714 "Fair Sharing".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from gpuplane.core.quota.nodes import Node
from gpuplane.core.quota.specs import FlavorResource

MAX_SHARE = 2**63 - 1
"""The share Kueue reports for a borrower of weight 0."""

ShareKey = tuple[bool, Fraction]
"""Orders shares: borrowers of weight 0 after everyone, then by weighted ratio."""

_ZERO_KEY: ShareKey = (False, Fraction(0))


@dataclass(frozen=True, slots=True)
class DominantShare:
    """The largest ratio of borrowed to lendable over all resources, with the node's weight.

    Args:
        resource: The resource that gives the ratio; empty when nothing is borrowed.
        borrowed: Units of it used beyond the node's quota.
        lendable: Units of it that the parent could lend at most.
        borrowed_pairs: Every flavor-resource used beyond the node's quota.
    """

    weight_milli: int
    resource: str = ""
    borrowed: int = 0
    lendable: int = 1
    borrowed_pairs: tuple[FlavorResource, ...] = ()

    @property
    def is_borrowing(self) -> bool:
        return bool(self.borrowed_pairs)

    @property
    def per_mille(self) -> int:
        """Return the weighted share in thousandths, rounded up; `MAX_SHARE` at weight 0."""
        if self.borrowed == 0:
            return 0
        if self.weight_milli == 0:
            return MAX_SHARE
        return -(-self.borrowed * 1_000_000 // (self.lendable * self.weight_milli))

    @property
    def sort_key(self) -> ShareKey:
        """Return a key by which a lower share is served first and a higher one evicted first."""
        if self.borrowed == 0:
            return _ZERO_KEY
        if self.weight_milli == 0:
            return True, Fraction(self.borrowed, self.lendable)
        return False, Fraction(self.borrowed * 1000, self.lendable * self.weight_milli)

    def borrows_on(self, request: Mapping[FlavorResource, int]) -> bool:
        """Tell whether the node borrows any flavor-resource that the request asks for."""
        return any(request.get(pair, 0) > 0 for pair in self.borrowed_pairs)


def compute_share(node: Node, extra: Mapping[FlavorResource, int] | None = None) -> DominantShare:
    """Return a node's dominant share, with `extra` usage of its own counted in.

    A root has no share: it has nobody to borrow from.
    """
    parent = node.parent
    if parent is None:
        return DominantShare(node.weight_milli)
    per_resource: dict[str, int] = {}
    pairs = []
    for pair, cell in node.cells.items():
        beyond = cell.usage - cell.subtree
        if extra:
            beyond += extra.get(pair, 0)
        if beyond > 0 and cell.in_subtree:
            per_resource[pair.resource] = per_resource.get(pair.resource, 0) + beyond
            pairs.append(pair)
    best, borrowed, lendable = "", 0, 1
    for resource in sorted(per_resource):
        lent = parent.lendable.get(resource, 0)
        # Kueue: a ratio needs something lendable; equal ratios go to the first name.
        if lent > 0 and per_resource[resource] * lendable > borrowed * lent:
            best, borrowed, lendable = resource, per_resource[resource], lent
    return DominantShare(node.weight_milli, best, borrowed, lendable, tuple(sorted(pairs)))
