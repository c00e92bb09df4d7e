"""Forms: parts by their names, and that nothing in a part is looked into."""

from __future__ import annotations

import pytest

from gpuplane.api.forms import read_form
from gpuplane.kit.errors import InvalidInput

TYPE = b"multipart/form-data; boundary=b0"


def a_form(*parts: tuple[bytes, bytes]) -> bytes:
    """Return a form of (headers, content)."""
    return b"".join(b"--b0\r\n%b\r\n\r\n%b\r\n" % part for part in parts) + b"--b0--\r\n"


def named(name: bytes, more: bytes = b"") -> bytes:
    return b'Content-Disposition: form-data; name="%b"' % name + more


def test_parts_are_read_by_their_names() -> None:
    body = a_form((named(b"a"), b"one"), (named(b"b", b'; filename="f"'), b"two\r\nlines"))
    assert read_form(TYPE, body, ("a", "b")) == {"a": b"one", "b": b"two\r\nlines"}


def test_a_form_within_a_form_a_thousand_deep_is_read_as_the_content_of_its_part() -> None:
    inner = b"x"
    for depth in range(2_000, 0, -1):
        kind = b"Content-Type: multipart/mixed; boundary=b%d" % depth
        inner = b"%b\r\n\r\n--b%d\r\n%b" % (kind, depth, inner)
    body = b"--b0\r\n" + named(b"a") + b"\r\n" + inner + b"\r\n--b0--\r\n"
    content = read_form(TYPE, body, ("a",))["a"]
    assert content.startswith(b"--b1\r\nContent-Type: multipart/mixed; boundary=b2")
    assert content.endswith(b"x")


def test_a_message_in_a_part_is_read_as_its_content() -> None:
    body = a_form((named(b"a", b"\r\nContent-Type: message/rfc822"), b"Subject: s\r\n\r\nt"))
    assert read_form(TYPE, body, ("a",)) == {"a": b"Subject: s\r\n\r\nt"}


def test_a_header_with_brackets_in_brackets_is_refused() -> None:
    deep = b"(" * 5_000 + b")" * 5_000
    body = a_form((named(b"a", b"; " + deep), b"one"))
    with pytest.raises(InvalidInput) as refused:
        read_form(TYPE, body, ("a",))
    assert refused.value.code == "invalid_form"
