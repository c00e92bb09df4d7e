"""Unexpected exceptions of one object, kept from all others: logged once, not at every look.

What serves a whole cluster lives as long as its process. A bug that one object brings to light may
cost that object its turn, and nobody else theirs.
"""

import contextlib
import logging
from collections.abc import Hashable, Iterator

log = logging.getLogger("gpuplane.kubernetes")

MAX_TOLD = 10_000
"""How many objects are remembered as told of; then all may be told of once more."""


class Failures:
    """Catches what the work on single objects raises; one that fails on is told of once."""

    def __init__(self) -> None:
        self._told: set[Hashable] = set()

    @contextlib.contextmanager
    def kept(
        self, what: str, of: Hashable = "", passing: tuple[type[Exception], ...] = ()
    ) -> Iterator[None]:
        """Do a piece of work that may fail without harm to what follows.

        Args:
            what: The work, in words.
            of: The object that it is on.
            passing: What the caller knows how to take, and gets.
        """
        try:
            yield
        except passing:
            raise
        except Exception:
            if (what, of) in self._told:
                return
            if len(self._told) >= MAX_TOLD:
                self._told.clear()
            self._told.add((what, of))
            log.exception("%s %s failed; all else goes on", what, of)
        else:
            self._told.discard((what, of))
