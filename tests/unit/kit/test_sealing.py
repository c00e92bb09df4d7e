"""Sealed values open in their own place with their own keys, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuplane.kit.sealing import SealBroken, SealingKeys


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> SealingKeys:
    made = SealingKeys(tmp_path_factory.mktemp("sealing") / "keys")
    assert made.current_id  # waits for the key that is made in the background
    return made


def test_a_value_comes_back_as_it_was(keys: SealingKeys) -> None:
    for plain in (b"", b"x", b"\x00\xff" * 50_000):
        assert keys.open(keys.seal(plain, "place"), "place") == plain


def test_the_same_value_never_looks_the_same(keys: SealingKeys) -> None:
    assert keys.seal(b"value", "place") != keys.seal(b"value", "place")
    assert b"value" not in keys.seal(b"value", "place")


def test_a_value_cannot_be_moved_to_another_place(keys: SealingKeys) -> None:
    with pytest.raises(SealBroken):
        keys.open(keys.seal(b"value", "secret/1/1"), "secret/2/1")


@pytest.mark.parametrize("at", [0, 5, 21, 100, 540, -1], ids=str)
def test_a_damaged_value_does_not_open(keys: SealingKeys, at: int) -> None:
    sealed = bytearray(keys.seal(b"value", "place"))
    sealed[at] ^= 1
    with pytest.raises(SealBroken):
        keys.open(bytes(sealed), "place")


@pytest.mark.parametrize("sealed", [b"", b"GPS1", b"GPS1" + b"x" * 40], ids=len)
def test_what_is_no_sealed_value_does_not_open(keys: SealingKeys, sealed: bytes) -> None:
    with pytest.raises(SealBroken):
        keys.open(sealed, "place")


def test_keys_lie_readable_to_their_owner_alone(keys: SealingKeys) -> None:
    folder = keys.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert sorted(path.suffix for path in folder.iterdir()) == ["", ".pem"]


def test_a_key_whose_file_is_damaged_is_refused(keys: SealingKeys, tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    for path in keys.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    damaged = folder / f"{keys.current_id}.pem"
    pem = damaged.read_text().splitlines()
    pem[3] = pem[3][::-1]  # within the modulus
    damaged.write_text("\n".join(pem) + "\n")
    with pytest.raises(ValueError, match=r"Decryption failed|deserialize|damaged"):
        SealingKeys(folder)


def test_another_process_opens_and_rotation_goes_on_without_downtime(
    keys: SealingKeys, tmp_path: Path
) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    for path in keys.folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    first, second = SealingKeys(folder), SealingKeys(folder)
    old = first.seal(b"value", "place")
    assert second.open(old, "place") == b"value"
    old_id = first.current_id
    new_id = first.rotate()
    new = first.seal(b"value", "place")
    assert first.open(old, "place") == b"value"
    assert second.open(new, "place") == b"value"  # it looks for the new key by itself
    again = first.rewrap(old, "place")
    assert first.rewrap(again, "place") == again
    assert first.key_ids() == sorted([old_id, new_id])
    first.retire(old_id)
    assert first.open(again, "place") == b"value"
    with pytest.raises(SealBroken):
        first.open(old, "place")
    with pytest.raises(ValueError, match="current key"):
        first.retire(new_id)
