"""Files and objects that arrived, and how the notifications of buckets tell of them.

The form of a notification is that of Amazon S3, event version 2; MinIO and others send the same.
Source: Amazon S3 User Guide, "Event message structure".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from gpuplane.kit.errors import InvalidInput

MAX_RECORDS = 1_000
CREATED = "ObjectCreated:"


@dataclass(frozen=True, slots=True)
class Found:
    """One file or object: what it is called, and what tells this version of it."""

    name: str
    path: str
    size: int
    modified_at: str
    mark: str

    @property
    def shown(self) -> dict[str, Any]:
        """Return what expressions see as `object`."""
        return {
            "name": self.name,
            "path": self.path,
            "size": self.size,
            "modified_at": self.modified_at,
        }

    @property
    def fire_key(self) -> str:
        """Return what is fired for once, whether it was looked for or told of."""
        return f"{self.path}@{self.mark}"


def object_of(bucket: str, key: str, size: int, modified_at: str, etag: str) -> Found:
    """Return an object of a bucket; its ETag stands in quotes in lists and bare in events."""
    name = key.rpartition("/")[2]
    return Found(name, f"s3://{bucket}/{key}", size, modified_at, etag.strip('"'))


def is_wanted(part: Mapping[str, Any], key: str) -> bool:
    """Return whether a trigger's filters let an object's key through."""
    return key.startswith(part.get("prefix", "")) and key.endswith(part.get("suffix", ""))


def read_notification(body: Any, part: Mapping[str, Any]) -> list[Found]:
    """Return the new objects that a notification tells of and a trigger wants.

    What is no creation, and what is of another bucket, is passed over; so is the test that S3
    sends when notifications are set up.

    Raises:
        InvalidInput: If it is no notification; names the place.
    """
    records = body.get("Records") if isinstance(body, dict) else None
    if records is None and isinstance(body, dict) and body.get("Event") == "s3:TestEvent":
        return []
    if not isinstance(records, list) or len(records) > MAX_RECORDS:
        raise _not_one("Records", f"a list of at most {MAX_RECORDS} records")
    found = []
    for place, record in enumerate(records):
        here = f"Records[{place}]"
        event = _part(record, "eventName", str, here)
        s3 = _part(record, "s3", dict, here)
        bucket = _part(_part(s3, "bucket", dict, f"{here}.s3"), "name", str, f"{here}.s3.bucket")
        thing = _part(s3, "object", dict, f"{here}.s3")
        key = unquote_plus(_part(thing, "key", str, f"{here}.s3.object"))
        if not event.removeprefix("s3:").startswith(CREATED) or bucket != part["bucket"]:
            continue
        if not is_wanted(part, key) or "\x00" in key:
            continue
        size, etag = thing.get("size", 0), thing.get("eTag", "")
        at = record.get("eventTime", "")
        if type(size) is not int or not isinstance(etag, str) or not isinstance(at, str):
            raise _not_one(f"{here}.s3.object", "an object with size and eTag")
        found.append(object_of(bucket, key, size, at, etag))
    return found


def _part(value: Any, name: str, kind: type, place: str) -> Any:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        raise _not_one(f"{place}.{name}", "an object" if kind is dict else "a text")
    return found


def _not_one(place: str, wanted: str) -> InvalidInput:
    return InvalidInput(
        f"This is no notification of a bucket: {place} should be {wanted}.",
        field=place,
        fix="Send the event message of S3 as it is.",
    )
