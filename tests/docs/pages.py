"""Finds what the pages quote: fenced blocks, the commands in them, and links. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOT_RUN = ("up", "operator")
"""Commands that do not end by themselves; the tests stand on one that runs already."""
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NODE = re.compile(r"(?<=local on )[^,]+")
_QUESTION = re.compile(r"^.* \[y/N\]: y$")
"""On a terminal a person is asked; a script says --yes."""
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language, its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command of the product that a page shows, and the lines it shows as its output."""

    words: tuple[str, ...]
    shown: tuple[str, ...]

    @property
    def is_refused(self) -> bool:
        """Whether the page shows how it is refused."""
        return any(line.startswith("gpuplane: ") for line in self.shown)


def pages() -> list[Path]:
    """Return every page that people read, in the order of the names."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    return sorted(found)


def name_of(page: Path) -> str:
    """Return a page's name from the root of the tree."""
    return page.relative_to(ROOT).as_posix()


def blocks(language: str) -> list[Block]:
    """Return every block of a language, page by page."""
    return [block for page in pages() for block in blocks_of(page) if block.language == language]


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(name_of(page), line, found.group(1), found.group(2))


def commands_of(block: Block) -> list[Command]:
    """Return the commands of the product in a console block that end by themselves."""
    if block.language != "console":
        return []
    commands: list[Command] = []
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        first, *lines = part.rstrip("\n").split("\n")
        words = shlex.split(first, comments=True)
        shown = [line for line in lines if not _QUESTION.match(line)]
        words += ["--yes"] * (len(lines) - len(shown))
        if words[:1] == ["gpuplane"] and words[1] not in NOT_RUN:
            commands.append(Command(tuple(words[1:]), tuple(shown)))
    return commands


def comparable(line: str) -> str:
    """Return a line of output without what differs from run to run: ids, this machine's name."""
    return _NODE.sub("NODE", _ID.sub("ID", line.rstrip()))


def links_of(page: Path) -> list[str]:
    """Return the targets of a page's links that lie in this tree."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return [target for target in _LINK.findall(text) if "://" not in target]


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that a page's headings make."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
