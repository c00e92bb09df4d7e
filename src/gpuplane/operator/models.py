"""What runs for a model: the operator's setting, read from a file of YAML.

Owns the reading and its refusals. The file may change while the operator runs (a ConfigMap that is
mounted does): it is read anew when its modification time has changed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuplane.kit.yaml_texts import UnreadableYaml, load_documents
from gpuplane.operator.rules.jobs import Image

FIELDS = frozenset({"image", "command", "args", "env", "resources"})
DEFAULT = "*"
"""The entry that every other model gets."""


class BadModels(Exception):
    """The file of models cannot be used; the text names the entry and the field."""


class Models:
    """The image of each model."""

    def __init__(self, images: Mapping[str, Image], path: Path | None = None) -> None:
        self._images = dict(images)
        self._path = path
        self._stamp = _stamp(path)

    def find(self, model: str) -> Image | None:
        """Return what runs for a model, the default where it has none of its own, or None."""
        self._refresh()
        return self._images.get(model) or self._images.get(DEFAULT)

    def names(self) -> frozenset[str]:
        """Return the models that have an image of their own."""
        self._refresh()
        return frozenset(self._images) - {DEFAULT}

    @property
    def has_default(self) -> bool:
        """Return whether every model has an image."""
        return DEFAULT in self._images

    def _refresh(self) -> None:
        stamp = _stamp(self._path)
        if self._path is None or stamp == self._stamp or stamp is None:
            return
        self._stamp = stamp
        try:
            self._images = _read(self._path)
        except BadModels:
            return  # what is half written or wrong changes nothing that was read before


def load_models(path: Path) -> Models:
    """Return the models of a file.

    Raises:
        BadModels: If it cannot be read or says what cannot be.
    """
    return Models(_read(path), path)


def read_models(text: str) -> dict[str, Image]:
    """Return the models of a YAML text, by name.

    Raises:
        BadModels: If an entry cannot be used.
    """
    try:
        documents = load_documents(text)
    except UnreadableYaml as error:
        raise BadModels(f"the file of models is no YAML: {error}") from error
    loaded = documents[0] if documents else {}
    if not isinstance(loaded, dict) or len(documents) > 1:
        raise BadModels("the file of models is no mapping of names to images")
    return {str(name): _image(str(name), entry) for name, entry in loaded.items()}


def _read(path: Path) -> dict[str, Image]:
    try:
        return read_models(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadModels(f"{path} cannot be read: {error}") from error


def _stamp(path: Path | None) -> tuple[int, int] | None:
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ino)


def _image(name: str, entry: Any) -> Image:
    if isinstance(entry, str):
        entry = {"image": entry}
    if not isinstance(entry, dict) or not isinstance(entry.get("image"), str):
        raise BadModels(f"{name}: write an image, or a mapping with the field image")
    unknown = sorted(set(map(str, entry)) - FIELDS)
    if unknown:
        raise BadModels(f"{name}.{unknown[0]}: unknown; known are {', '.join(sorted(FIELDS))}")
    return Image(
        entry["image"],
        _words(name, "command", entry),
        _words(name, "args", entry),
        _texts(name, "env", entry),
        _texts(name, "resources", entry),
    )


def _words(name: str, field: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    value = entry.get(field) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise BadModels(f"{name}.{field}: is a list of texts")
    return tuple(value)


def _texts(name: str, field: str, entry: Mapping[str, Any]) -> dict[str, str]:
    value = entry.get(field) or {}
    if not isinstance(value, dict) or any(isinstance(each, dict | list) for each in value.values()):
        raise BadModels(f"{name}.{field}: is a mapping of texts")
    return {str(key): str(each) for key, each in value.items()}
