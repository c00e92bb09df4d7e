"""Reads manifests: YAML documents with apiVersion, kind, metadata and spec.

Owns what every document has in common and the place that errors name; what a kind means is the
business of `kinds`.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuplane.cli.errors import CliError, Exit

API_VERSION = "gpuplane.io/v1"
MAX_BYTES = 16 << 20
MAX_DOCUMENTS = 10_000
"""Limits on what is read at once: more is a slip, or a data file."""
FIELDS = ("apiVersion", "kind", "metadata", "spec")


@dataclass(frozen=True, slots=True)
class Document:
    """One manifest.

    Args:
        kind: What it describes.
        name: Its name, from the metadata.
        metadata: Everything else the metadata say.
        spec: What is wanted.
        place: Where it stands, as `FILE, line N`.
        folder: The folder that relative paths in it are relative to.
    """

    kind: str
    name: str
    metadata: dict[str, Any]
    spec: dict[str, Any]
    place: str
    folder: Path

    def error(self, message: str, *, field: str = "", fix: str = "") -> CliError:
        """Return an error that names the document."""
        where = f"{self.place}, {self.kind} {self.name}"
        return CliError(message, fix=fix, field=f"{where}{f', {field}' if field else ''}",
                        code=Exit.USAGE)  # fmt: skip

    def check_metadata(self, *allowed: str) -> None:
        """Refuse metadata that this kind does not have.

        Raises:
            CliError: If there are any.
        """
        for name in self.metadata:
            if name not in ("name", *allowed):
                raise self.error(
                    f"There is no field {name!r} here.",
                    field=f"metadata.{name}",
                    fix=nearest(name, ("name", *allowed)),
                )


def read_documents(text: str, source: str, folder: Path, kinds: Sequence[str]) -> list[Document]:
    """Return the manifests of a text; empty documents are passed over.

    Args:
        text: YAML, several documents apart by `---`.
        source: What errors call it.
        folder: What relative paths are relative to.
        kinds: The kinds that are known.

    Raises:
        CliError: If it is no YAML, or a document is no manifest of a known kind.
    """
    import yaml

    from gpuplane.kit.yaml_texts import PlainLoader

    if len(text) > MAX_BYTES:
        raise CliError(f"{source} is longer than {MAX_BYTES} bytes.", code=Exit.USAGE)
    found = []
    loader = None
    try:
        loader = PlainLoader(text)
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            line = node.start_mark.line + 1
            value = loader.construct_document(node)
            if value is not None:
                found.append(_document(value, f"{source}, line {line}", folder, kinds))
            if len(found) > MAX_DOCUMENTS:
                raise CliError(f"{source} holds more than {MAX_DOCUMENTS} documents.",
                               code=Exit.USAGE)  # fmt: skip
    except (yaml.YAMLError, ValueError) as error:  # a number of too many digits is the latter
        raise _yaml_error(source, error) from error
    except RecursionError as error:
        raise CliError(f"{source} is nested too deeply.", code=Exit.USAGE) from error
    finally:
        if loader is not None:
            loader.dispose()
    _refuse_doubles(found)
    return found


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a sentence that offers the nearest known words."""
    close = difflib.get_close_matches(word, known, 3)
    return f"Did you mean {' or '.join(close)}?" if close else f"Known: {', '.join(known)}."


def _document(value: Any, place: str, folder: Path, kinds: Sequence[str]) -> Document:
    if not isinstance(value, dict):
        raise CliError("A manifest is a mapping with apiVersion, kind, metadata and spec.",
                       field=place, code=Exit.USAGE)  # fmt: skip
    for name in value:
        if name not in FIELDS:
            raise CliError(f"There is no field {str(name)!r} here.", field=place,
                           fix=nearest(str(name), FIELDS), code=Exit.USAGE)  # fmt: skip
    if value.get("apiVersion") != API_VERSION:
        found = value.get("apiVersion")
        said = "apiVersion is missing." if found is None else f"apiVersion is {found!r}."
        raise CliError(said, field=place,
                       fix=f"Write apiVersion: {API_VERSION}.", code=Exit.USAGE)  # fmt: skip
    kind = str(value.get("kind"))
    if kind not in kinds:
        raise CliError(f"There is no kind {kind!r}.", field=place,
                       fix=nearest(kind, kinds), code=Exit.USAGE)  # fmt: skip
    metadata, spec = value.get("metadata"), value.get("spec")
    if spec is None:
        spec = {}
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise CliError("metadata.name is missing.", field=f"{place}, {kind}",
                       fix="Give it a name.", code=Exit.USAGE)  # fmt: skip
    if not isinstance(spec, dict):
        raise CliError("spec is no mapping.", field=f"{place}, {kind} {metadata['name']}",
                       code=Exit.USAGE)  # fmt: skip
    others = {key: each for key, each in metadata.items() if key != "name"}
    return Document(kind, metadata["name"], others, spec, place, folder)


def _refuse_doubles(documents: Sequence[Document]) -> None:
    seen: dict[tuple[str, ...], Document] = {}
    for each in documents:
        place = [str(each.metadata.get(key, "")) for key in ("tenant", "project", "cluster")]
        key = (each.kind, each.name, *place)
        if key in seen:
            raise each.error(f"It stands there twice, first at {seen[key].place}.",
                             fix="Give one of them another name.")  # fmt: skip
        seen[key] = each


def _yaml_error(source: str, error: Any) -> CliError:
    mark = getattr(error, "problem_mark", None)
    place = source if mark is None else f"{source}, line {mark.line + 1}"
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return CliError(f"This is no valid YAML: {problem}.", field=place, code=Exit.USAGE)
