"""Writes the table of provider attributes that our configurations use, from published bindings.

    python -m tools.provider_attributes FOLDER

FOLDER holds the packages `@cdktf/provider-aws`, `-azurerm` and `-google` as `npm pack` leaves them.
Their TypeScript declarations were generated from `providers schema -json` of one exact release of
each provider, and are the only form of the schemas that can be had without a provider's binary.
The table (tests/unit/core/provisioning/provider_attributes.json) has what the golden files use and
what is required beside it: name, type, and whether it must be there.
"""

import json
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests/unit/core/provisioning/golden"
TABLE = ROOT / "tests/unit/core/provisioning/provider_attributes.json"
META = ("depends_on", "lifecycle")
"""Arguments of the language, which no provider declares."""

_INTERFACE = re.compile(r"^export interface (\w+)[^{\n]*\{\n(.*?)^\}", re.S | re.M)
_MEMBER = re.compile(r"/\*\*(.*?)\*/\s*readonly (\w+)(\??): (.*?);\n(?=\s*/\*\*|\s*$)", re.S)
_ANCHOR = re.compile(r"\{@link [^}]*#(\w+) [^}]*\}")

Block = dict[str, Any]


def main(folder: Path) -> None:
    """Write the table."""
    table: Block = {"sources": {}, "resource": {}, "data": {}, "provider": {}}
    for file in sorted(GOLDEN.glob("*.tf.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        ((provider, wanted),) = document["terraform"]["required_providers"].items()
        (package,) = sorted(folder.glob(f"cdktf-provider-{provider}-*.tgz"))
        with tarfile.open(package) as archive:
            made_for = _member(archive, "package/package.json")
            named = json.loads(made_for)
            version = named["cdktf"]["provider"]["version"]
            if version != wanted["version"]:
                raise SystemExit(f"{package.name} is made for {version}, not {wanted['version']}")
            table["sources"][wanted["source"]] = f"{version}, {named['name']} {named['version']}"
            shape = _shape(archive, "provider", provider, provider)
            _note(table["provider"].setdefault(provider, {}), document["provider"][provider], shape,
                  "provider")  # fmt: skip
            for group in ("resource", "data"):
                for kind, blocks in document.get(group, {}).items():
                    known = table[group].setdefault(kind, {})
                    shape = _shape(archive, group, kind, provider)
                    for block in blocks.values():
                        _note(known, block, shape, kind)
    TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _note(known: Block, block: Block, shape: Block, place: str) -> None:
    """Add to the table what a block uses and what it must have."""
    for name, value in block.items():
        if name in META and place.count(".") == 0:
            continue
        if name not in shape:
            raise SystemExit(f"{place}.{name}: the provider has no such attribute")
        declared = shape[name]
        entry = known.setdefault(name, {k: v for k, v in declared.items() if k != "block"})
        if "block" in declared:
            inner = entry.setdefault("block", {})
            for each in value if isinstance(value, list) else [value]:
                _note(inner, each, declared["block"], f"{place}.{name}")
    for name, declared in shape.items():
        if declared["required"]:
            known.setdefault(name, {k: v for k, v in declared.items() if k != "block"})


def _shape(archive: tarfile.TarFile, group: str, kind: str, provider: str) -> Block:
    """Return what a resource declares: name -> type, required, and the block below."""
    words = kind.removeprefix(f"{provider}_").split("_")
    if group == "provider":
        words = ["provider"]
    prefix = "data-" + provider + "-" if group == "data" else ""
    folder = f"package/lib/{prefix}{'-'.join(words)}/"
    texts = [
        _member(archive, name)
        for name in archive.getnames()
        if name.startswith(folder) and name.endswith(".d.ts")
    ]
    interfaces = {name: body for text in texts for name, body in _INTERFACE.findall(text)}
    pascal = "".join(word.capitalize() for word in words)
    if group != "resource":
        pascal = ("Data" if group == "data" else "") + provider.capitalize() + pascal
    start = pascal + "Config"
    by_lower = {name.lower(): name for name in interfaces}
    return _declared(interfaces, by_lower[start.lower()])


def _declared(interfaces: dict[str, str], name: str) -> Block:
    found: Block = {}
    for attribute, optional, written in _members(interfaces[name]):
        plain = re.sub(r"\s+", " ", written).replace(" | cdktf.IResolvable", "")
        entry: Block = {"required": not optional}
        below = plain.removesuffix("[]")
        if below in interfaces:
            entry |= {"type": "list" if plain.endswith("[]") else "one"}
            entry["block"] = _declared(interfaces, below)
        else:
            entry["type"] = re.sub(r"[{}]|\[key: string\]: |;", "", plain).strip() + (
                " map" if plain.startswith("{") else ""
            )
        found[attribute] = entry
    return found


def _members(body: str) -> Iterator[tuple[str, bool, str]]:
    for comment, name, optional, written in _MEMBER.findall(body + "\n"):
        anchors = _ANCHOR.findall(comment)
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        yield (anchors[-1] if anchors else snake), bool(optional), written


def _member(archive: tarfile.TarFile, name: str) -> str:
    file = archive.extractfile(name)
    assert file is not None
    return file.read().decode()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
