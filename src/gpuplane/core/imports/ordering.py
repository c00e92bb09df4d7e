"""Puts named things into an order in which each stands after those that it needs."""

from collections.abc import Mapping, Sequence


def ordered(needs: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return the names in order, and those that wait for one another.

    Of those that could come next the earlier in the mapping comes first, round by round. Names that
    are needed and not there are taken for granted.
    """
    place = {name: number for number, name in enumerate(needs)}
    waiting = {name: len({each for each in needs[name] if each in place}) for name in needs}
    followers: dict[str, list[str]] = {name: [] for name in needs}
    for name, each in needs.items():
        for need in dict.fromkeys(each):
            if need in place:
                followers[need].append(name)
    found: list[str] = []
    ready = [name for name, count in waiting.items() if count == 0]
    while ready:
        found += ready
        following = []
        for name in ready:
            for other in followers[name]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    following.append(other)
        ready = sorted(following, key=place.__getitem__)
    return found, [name for name, count in waiting.items() if count > 0]
