"""Killed in the middle: the state is whole, what was made is known, nobody comes in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuplane.kit.sealing import SealingKeys
from gpuplane.provisioning.clusters import Provisioner, SavedPlan
from gpuplane.provisioning.errors import ProvisioningError, Reason
from tests.integration.provisioning.conftest import Making, files
from tests.waiting import wait_until

DEADLINE_S = 60.0


class Applying:
    """A process that applies a plan whose last resource waits for a line in a FIFO."""

    def __init__(self, home: Path, sealing: SealingKeys, binary: str, provisioner: Provisioner):
        self.fifo = home / "fifo"
        os.mkfifo(self.fifo)
        self.files = files(2, waits_for=self.fifo)
        saved = provisioner.plan("train", self.files, {})
        self.process = start(home, sealing, binary, saved)
        self.writer = wait_until(self._opened, "the last resource waits", deadline_s=DEADLINE_S)

    def _opened(self) -> int | None:
        try:
            return os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            return None

    def binary_pids(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(each) for each in path.read_text().split()]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def let_go(self) -> None:
        os.write(self.writer, b"go\n")
        os.close(self.writer)


def start(
    home: Path, sealing: SealingKeys, binary: str, saved: SavedPlan, **more: str
) -> subprocess.Popen[bytes]:
    arguments = [str(home), str(sealing.folder), binary, saved.id]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.provisioning.applying", *arguments],
        env={**os.environ, "PYTHONPATH": "src:.", **more},
        cwd=Path(__file__).parents[3],
    )


def is_free(provisioner: Provisioner, given: dict[str, bytes]) -> SavedPlan | None:
    """Return a plan, None while the cluster is busy."""
    try:
        return provisioner.plan("train", given, {})
    except ProvisioningError as error:
        if error.reason is not Reason.BUSY:
            raise
        return None


@pytest.fixture
def applying(tmp_path: Path, sealing: SealingKeys, binary: str, making: Making) -> Applying:
    return Applying(tmp_path, sealing, binary, making())


def test_the_binary_outlives_us_and_what_it_made_is_taken_up(
    applying: Applying, making: Making
) -> None:
    provisioner = making()
    applying.kill()
    with pytest.raises(ProvisioningError) as refused:
        provisioner.plan("train", applying.files, {})
    assert refused.value.reason is Reason.BUSY
    (row,) = provisioner.list_made()
    assert row.is_interrupted
    applying.let_go()
    saved = wait_until(
        lambda: is_free(provisioner, applying.files), "the binary ended", deadline_s=DEADLINE_S
    )
    assert saved.summary.is_empty, "everything that was made is known"


def test_what_was_made_is_known_or_told_when_the_binary_is_killed_as_well(
    applying: Applying, making: Making
) -> None:
    told: list[str] = []
    provisioner = making(told)
    groups = [os.getpgid(pid) for pid in applying.binary_pids()]
    assert groups
    applying.kill()
    for group in groups:
        os.killpg(group, signal.SIGKILL)
    os.close(applying.writer)
    plain = files(2)
    saved = wait_until(lambda: is_free(provisioner, plain), "the lock", deadline_s=DEADLINE_S)
    again = [each.address for each in saved.summary.changes]
    assert "terraform_data.r1" in again, "it had not been made"
    # Terraform writes each change down at once, OpenTofu every 20 s.
    is_told = any(each.startswith("terraform_data.r0 (") for each in told)
    assert ("terraform_data.r0" in again) is is_told
    told.clear()
    provisioner.apply("train", saved.id)
    assert provisioner.plan("train", plain, {}).summary.is_empty
    assert not any("in no state" in each for each in told[1:])


def test_ctrl_c_is_passed_on_and_what_was_made_is_kept(applying: Applying, making: Making) -> None:
    applying.process.send_signal(signal.SIGINT)
    assert applying.process.wait(DEADLINE_S) != 0
    os.close(applying.writer)
    saved = making().plan("train", files(2), {})
    assert "terraform_data.r0" not in [each.address for each in saved.summary.changes]
    assert not (making().home / "provisioning" / "train" / "work").exists()


POINTS = ("laid-out", "before-apply", "applied", "previous-kept", "sealed")


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_step_the_state_is_whole_afterwards(
    tmp_path: Path, sealing: SealingKeys, binary: str, making: Making, point: str
) -> None:
    provisioner = making()
    provisioner.apply("train", provisioner.plan("train", files(1), {}).id)
    saved = provisioner.plan("train", files(3), {})
    process = start(tmp_path, sealing, binary, saved, GPUPLANE_FAILPOINTS=f"provisioning:{point}")
    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    rest = [each.address for each in provisioner.plan("train", files(3), {}).summary.changes]
    was_applied = point not in ("laid-out", "before-apply")
    assert rest == ([] if was_applied else ["terraform_data.r1", "terraform_data.r2"])
