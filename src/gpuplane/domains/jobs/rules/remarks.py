"""What `why` tells beyond a job's reason: a sentence, and what to do about it."""

from typing import NamedTuple


class Remark(NamedTuple):
    """A sentence and what to do about it; both empty where nothing is to be told."""

    sentence: str = ""
    fix: str = ""
