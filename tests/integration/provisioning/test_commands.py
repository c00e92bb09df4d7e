"""`gpuplane clusters plan|provision|deprovision|…` as people call them, by the real binary."""

from __future__ import annotations

import base64
import json
import os
import pty
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuplane.kit.sealing import SealingKeys
from gpuplane.kube.kubeconfigs import read_kubeconfig
from tests.certificates import Authority
from tests.integration.cli.conftest import COMMAND, CommandLine, Done
from tests.integration.provisioning.standing_in import write_program
from tests.unit.core.provisioning.specifications import EXAMPLES, GOLDEN

EKS = str(EXAMPLES / "eks.yaml")


@pytest.fixture
def offline(tmp_path: Path, sealing: SealingKeys) -> CommandLine:
    """The command line on a home with keys, where there is no server and no binary is needed."""
    home = tmp_path / "home"
    shutil.copytree(sealing.folder, home / "keys")
    return CommandLine(home, tmp_path)


@pytest.fixture
def cli(offline: CommandLine, binary: str, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The same, with the binary on resources that need no cloud."""
    authority = base64.b64encode(Authority(datetime.now(UTC)).certificate.encode()).decode()
    outputs = {"server": "https://203.0.113.5:6443", "certificate_authority_data": authority}
    program = write_program(offline.folder / "standing-in", binary, outputs)
    monkeypatch.setenv("STANDING_IN", str(program))
    return offline


def ok(cli: CommandLine, *words: str, **more: str) -> Done:
    done = call(cli, *words, **more)
    assert done.code == 0, done
    return done


def call(cli: CommandLine, *words: str, **more: str) -> Done:
    env = {"GPUPLANE_PROVISIONING_BINARY": os.environ.get("STANDING_IN", "no-such-binary")}
    return cli("clusters", *words, env=env, stdin=more.get("stdin"))


def counts(path: Path) -> int:
    document = json.loads(path.read_text())
    return sum(len(each) for each in document["resource"].values())


def test_a_cluster_is_planned_made_reached_and_removed(cli: CommandLine) -> None:
    planned = ok(cli, "plan", "-f", EKS)
    total = counts(GOLDEN / "train-eu.tf.json")
    assert planned.out.splitlines()[-1] == f"{total} to add, 0 to change, 0 to destroy"
    assert "+ terraform_data.aws_eks_cluster_cluster" in planned.out
    assert "clusters provision train-eu" in planned.err

    ok(cli, "provision", "train-eu", "--yes")
    (row,) = ok(cli, "provisioned", "-o", "json").data["items"]
    assert (row["name"], row["platform"], row["resources"]) == ("train-eu", "eks", total)

    target = cli.folder / "admin.kubeconfig"
    ok(cli, "kubeconfig", "train-eu", "--to", str(target))
    assert target.stat().st_mode & 0o777 == 0o600
    connection = read_kubeconfig(target.read_text())
    assert connection.server == "https://203.0.113.5:6443"
    lasting = ok(cli, "kubeconfig", "train-eu", "--token-file", "-", stdin="lasting-token\n")
    assert read_kubeconfig(lasting.out).token == "lasting-token"

    again = ok(cli, "provision", "-f", EKS, "--yes")
    assert again.out == "0 to add, 0 to change, 0 to destroy\n"
    gone = ok(cli, "deprovision", "train-eu", "--yes")
    assert f"{total} to destroy" in gone.out
    assert ok(cli, "provisioned", "-o", "json").data == {"items": []}


def test_nothing_is_made_or_removed_without_an_answer(cli: CommandLine) -> None:
    refused = call(cli, "provision", "-f", EKS)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert ok(cli, "provisioned", "-o", "json").data["items"][0]["resources"] == 0
    refused = call(cli, "deprovision", "train-eu")
    assert (refused.code, "--yes" in refused.err) == (2, True)


def asked(cli: CommandLine, answer: str, *words: str) -> int:
    """Return the exit code of a command that a person at a terminal answers."""
    pid, terminal = pty.fork()
    if pid == 0:
        env = cli.environment(GPUPLANE_PROVISIONING_BINARY=os.environ["STANDING_IN"])
        os.execve(COMMAND[0], [*COMMAND, "clusters", *words], env)
    os.write(terminal, f"{answer}\n".encode())
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_person_is_asked_and_a_removal_wants_the_name(cli: CommandLine) -> None:
    specification = str(EXAMPLES / "aks.yaml")
    assert asked(cli, "n", "provision", "-f", specification) == 4
    assert asked(cli, "y", "provision", "-f", specification) == 0
    made = ok(cli, "provisioned", "-o", "json").data["items"][0]["resources"]
    assert made == counts(GOLDEN / "serve-we.tf.json")
    assert asked(cli, "train-eu", "deprovision", "serve-we") == 4
    assert asked(cli, "serve-we", "deprovision", "serve-we") == 0


def test_the_configuration_is_shown_for_review_without_any_binary(offline: CommandLine) -> None:
    shown = ok(offline, "plan", "-f", EKS, "--configuration")
    assert shown.out == (GOLDEN / "train-eu.tf.json").read_text()


def test_a_join_script_is_printed_as_it_was_reviewed(offline: CommandLine) -> None:
    k3s = str(EXAMPLES / "k3s.yaml")
    shown = ok(offline, "join-script", "-f", k3s, "--role", "agent")
    assert shown.out == (GOLDEN / "lab.agent.sh").read_text()


REFUSED = [
    (("plan", "-f", EKS), 4, "There is no no-such-binary on this machine."),
    (("plan", "-f", str(EXAMPLES / "k3s.yaml")), 4, "join-script"),
    (("plan", "-f", "nothing.yaml"), 2, "There is no file nothing.yaml."),
    (("plan",), 2, "-f FILE"),
    (("provision",), 2, "NAME of a planned cluster or -f FILE"),
    (("provision", "nobody"), 3, "Plan again"),
    (("provision", "../keys"), 2, "no name of a cluster"),
    (("deprovision", "nobody", "--yes"), 3, "clusters provisioned"),
    (("kubeconfig", "nobody"), 3, "clusters provisioned"),
    (("access", "nobody"), 3, "clusters provisioned"),
    (("access",), 2, "either the NAME of a cluster made from here or --kubeconfig"),
    (("access", "--kubeconfig", "nothing"), 2, "There is no file nothing."),
    (("register", "x"), 2, "either --kubeconfig FILE or --provisioned"),
    (("register", "x", "--kubeconfig", "f", "--provisioned"), 2, "either --kubeconfig"),
    (("register", "x", "--kubeconfig", "f", "--for-addons"), 2, "--provisioned"),
    (("register", "x", "--kubeconfig", "f", "--for-multikueue"), 2, "--provisioned"),
    (("credentials", "x", "--kubeconfig", "f", "--for-multikueue"), 2, "--provisioned"),
    (("register", "x", "--provisioned", "--context", "c"), 2, "--context is of a --kubeconfig"),
    (("join-script", "-f", EKS, "--role", "agent"), 4, "makes its nodes itself"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "said"), REFUSED, ids=lambda each: str(each)[:30])
def test_what_cannot_be_done_says_why_and_changes_nothing(
    offline: CommandLine, words: tuple[str, ...], code: int, said: str
) -> None:
    done = call(offline, *words)
    assert (done.code, said in done.err) == (code, True), done
    assert not list(offline.home.glob("provisioning/*/state.sealed"))


def test_a_bad_specification_is_refused_by_field_reason_and_fix(offline: CommandLine) -> None:
    text = Path(EKS).read_text().replace("max: 10", "max: 0").replace("region: eu", "regoin: eu")
    done = call(offline, "plan", "-f", "-", stdin=text)
    assert done.code == 2
    assert done.err.splitlines() == [
        "gpuplane: spec.nodePools[2].max: 0 is out of bounds.",
        "  Choose 1 to 5000.",
        "  spec.region: It is missing. Give it a region of the cloud.",
        "  spec.regoin: There is no such field here. Did you mean 'region'?",
    ]
