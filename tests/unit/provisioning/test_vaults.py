"""The vault of a cluster: its state sealed, whole, never lost, and for one command at a time."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from gpuplane.kit.sealing import SealBroken, SealingKeys
from gpuplane.provisioning.errors import ProvisioningError, Reason
from gpuplane.provisioning.vaults import BACKUP, ERRORED, STATE, Vault, rewrap_vaults

SECRET = "hush-hush"


@pytest.fixture
def vault(tmp_path: Path, sealing: SealingKeys) -> Vault:
    return Vault(tmp_path / "provisioning" / "train", "train", sealing)


def state(serial: int, lineage: str = "l-1") -> str:
    return json.dumps({"serial": serial, "lineage": lineage, "outputs": {"token": SECRET}})


def write_in(vault: Vault, text: str, name: str = STATE) -> None:
    with vault.open():
        (vault.work / name).write_text(text)


def leave(vault: Vault, **files: str) -> None:
    """Leave a folder behind as a command does that was killed."""
    vault.work.mkdir(parents=True)
    for name, text in files.items():
        (vault.work / {"state": STATE, "backup": BACKUP, "errored": ERRORED}[name]).write_text(text)


def serial_of(vault: Vault) -> int | None:
    with vault.open():
        found = vault.state()
    return None if found is None else int(found["serial"])


def every_byte(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())


def test_a_state_lies_sealed_and_nothing_of_it_open(vault: Vault) -> None:
    write_in(vault, state(1))
    assert not vault.work.exists()
    assert SECRET.encode() not in every_byte(vault.folder)
    assert (vault.folder / "state.sealed").stat().st_mode & 0o777 == 0o600
    assert vault.folder.stat().st_mode & 0o777 == 0o700
    found = vault.state()
    assert found is not None
    assert found["outputs"] == {"token": SECRET}


def test_a_command_finds_the_state_of_the_one_before(vault: Vault) -> None:
    write_in(vault, state(1))
    with vault.open():
        assert (vault.work / STATE).read_text() == state(1)
        assert vault.work.stat().st_mode & 0o777 == 0o700


def test_the_state_of_another_cluster_does_not_open_here(vault: Vault) -> None:
    write_in(vault, state(1))
    other = Vault(vault.folder, "other", vault.keys)
    with pytest.raises(SealBroken):
        other.state()


def test_what_a_killed_command_left_is_taken_before_anything_else(vault: Vault) -> None:
    write_in(vault, state(1))
    leave(vault, state=state(4), backup=state(1))
    assert serial_of(vault) == 4
    assert not vault.work.exists()


def test_a_state_that_could_not_be_written_by_the_binary_is_taken_too(vault: Vault) -> None:
    leave(vault, state=state(2), errored=state(5))
    assert serial_of(vault) == 5


def test_a_state_that_was_cut_off_never_stands_for_a_whole_one(vault: Vault) -> None:
    write_in(vault, state(3))
    leave(vault, state=state(7)[:20], backup=state(3))
    assert serial_of(vault) == 3
    (kept,) = vault.folder.glob("*.unread.sealed")
    assert vault.keys.open(kept.read_bytes(), "provisioning/train/unread").decode() == state(7)[:20]


def test_an_older_state_and_one_of_another_lineage_replace_nothing(vault: Vault) -> None:
    write_in(vault, state(5))
    leave(vault, state=state(4))
    assert serial_of(vault) == 5
    leave(vault, state=state(9, lineage="l-2"))
    assert serial_of(vault) == 5
    assert len(list(vault.folder.glob("*.unread.sealed"))) == 1


def test_the_state_before_is_kept_beside_the_newest(vault: Vault) -> None:
    write_in(vault, state(1))
    write_in(vault, state(2))
    before = (vault.folder / "state.previous.sealed").read_bytes()
    assert vault.keys.open(before, "provisioning/train/state").decode() == state(1)


def test_a_state_is_sealed_also_when_the_command_fails(vault: Vault) -> None:
    def fail_after_a_change() -> None:
        with vault.open():
            (vault.work / STATE).write_text(state(2))
            raise RuntimeError("apply")

    with pytest.raises(RuntimeError, match="apply"):
        fail_after_a_change()
    assert serial_of(vault) == 2


def test_a_state_that_cannot_be_sealed_stays_until_it_can(vault: Vault) -> None:
    write_in(vault, state(1))
    blocker = vault.folder / "state.previous.sealed"
    blocker.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_in(vault, state(2))
    assert vault.work.exists()
    blocker.rmdir()
    assert serial_of(vault) == 2


def test_two_commands_never_work_on_one_cluster(vault: Vault) -> None:
    with vault.open(), pytest.raises(ProvisioningError) as refused, vault.open():
        pass
    assert refused.value.reason is Reason.BUSY


def test_a_cluster_stays_locked_while_what_was_started_for_it_lives(vault: Vault) -> None:
    with vault.open() as lock:
        inherited = os.dup(lock)  # as a child has it
    with pytest.raises(ProvisioningError), vault.open():
        pass
    os.close(inherited)
    assert serial_of(vault) is None


def test_a_plan_is_kept_sealed_and_what_it_would_do_beside_it(vault: Vault) -> None:
    with vault.open():
        vault.put_plan(SECRET.encode(), {"id": "p1"})
    assert vault.plan() == (SECRET.encode(), {"id": "p1"})
    assert SECRET.encode() not in every_byte(vault.folder)
    vault.drop_plan()
    assert vault.plan() is None


def test_a_cluster_that_is_removed_leaves_nothing(vault: Vault) -> None:
    write_in(vault, state(1))
    with vault.open():
        vault.remove()
    assert not vault.folder.exists()


def completed(address: str, action: str = "create") -> str:
    hook = {"resource": {"addr": address}, "action": action, "id_value": "vpc-1"}
    return json.dumps({"type": "apply_complete", "hook": hook})


def test_what_was_made_and_is_in_no_state_is_told_until_it_is(vault: Vault) -> None:
    made = [completed("aws_vpc.network"), completed("aws_eip.nat"), completed("a.b"),
            completed("a.b", "delete"), '{"type": "apply_com']  # fmt: skip
    nat = {"mode": "managed", "type": "aws_eip", "name": "nat", "instances": [{}]}
    network = {**nat, "type": "aws_vpc", "name": "network"}
    known = json.loads(state(2)) | {"resources": [nat]}
    leave(vault, state=json.dumps(known))
    (vault.work / "stdout").write_text("\n".join(made))
    with vault.open():
        assert vault.unrecorded() == {"aws_vpc.network": "vpc-1"}
    write_in(vault, json.dumps(known | {"serial": 3, "resources": [nat, network]}))
    assert vault.unrecorded() == {}


def key_of(path: Path) -> str:
    """Return the id of the key that a sealed file opens with."""
    return path.read_bytes()[4:20].decode()


@pytest.fixture
def rotating(tmp_path: Path, sealing: SealingKeys) -> SealingKeys:
    """Keys of a test's own, with a second one that somebody may turn to."""
    folder = tmp_path / "keys"
    shutil.copytree(sealing.folder, folder)
    return SealingKeys(folder)


def test_a_rotation_seals_what_lies_there_anew_and_leaves_what_a_command_holds_to_it(
    tmp_path: Path, rotating: SealingKeys
) -> None:
    train, serve = (Vault(tmp_path / "provisioning" / name, name, rotating)
                    for name in ("train", "serve"))  # fmt: skip
    write_in(train, state(1))
    write_in(train, state(2))
    with train.open():
        train.put_plan(b"a plan", {"id": "p"})
    write_in(serve, state(1))
    write_in(serve, "cut o", BACKUP)
    sealed = sorted(each for vault in (train, serve) for each in vault.folder.glob("*.sealed"))
    assert len(sealed) == 5
    other = SealingKeys(rotating.folder)  # the server's, in another process
    with serve.open():
        fresh = other.rotate()
        assert rewrap_vaults(tmp_path, other) == 3
        assert {key_of(each) for each in train.folder.glob("*.sealed")} == {fresh}
        assert fresh not in {key_of(each) for each in serve.folder.glob("*.sealed")}
    assert {key_of(each) for each in sealed} == {fresh}, "its end sealed the rest anew"
    assert serial_of(train) == 2
    assert train.plan() == (b"a plan", {"id": "p"})
    assert rewrap_vaults(tmp_path, other) == 0


def test_a_file_whose_key_is_gone_does_not_stop_a_rotation(
    tmp_path: Path, rotating: SealingKeys
) -> None:
    vault = Vault(tmp_path / "provisioning" / "train", "train", rotating)
    write_in(vault, state(1))
    broken = vault.folder / "terraform.tfstate.0.unread.sealed"
    broken.write_bytes(b"GPS1" + b"0" * 16 + bytes(40))
    rotating.rotate()
    assert rewrap_vaults(tmp_path, rotating) == 1
    assert serial_of(vault) == 1
