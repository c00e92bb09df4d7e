"""The account by which a cluster is registered is made, and a cluster made from here is by it."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuplane.kube.clients import KubeClient
from gpuplane.kube.connections import Connection, read_kubeconfig
from gpuplane.kube.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, DEPLOYMENT, NODE
from gpuplane.kube.kubeconfigs import write_kubeconfig
from gpuplane.kube.preflight import look_at
from gpuplane.provisioning.access import (
    ACCOUNT,
    ADDONS_BINDING,
    NAMESPACE,
    TOKEN_SECRET,
    ensure_access,
    ensure_access_for_addons,
)
from gpuplane.provisioning.binaries import NAMES, find_binary
from gpuplane.provisioning.errors import ProvisioningError
from tests.integration.cli.conftest import CommandLine, Server, start_server
from tests.integration.provisioning.standing_in import write_program
from tests.kubernetes.kueue.dispatching import IN_TURN, dispatching_turn
from tests.kubernetes.rigged import RunningCluster
from tests.unit.core.provisioning.specifications import EXAMPLES

pytestmark = IN_TURN


@pytest.fixture
async def made(rig: RunningCluster, second_rig: RunningCluster) -> AsyncIterator[RunningCluster]:
    """A cluster without the account before and after, while no worker is registered by it."""
    async with dispatching_turn(rig.kubeconfig.parent):
        yield second_rig
        _take_away_account(second_rig)


def _take_away_account(cluster: RunningCluster) -> None:
    api = cluster.api()
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    for path in (
        f"/api/v1/namespaces/{NAMESPACE}/secrets/{TOKEN_SECRET}",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}",
        f"{rbac}/clusterrolebindings/{ACCOUNT}",
        f"{rbac}/clusterrolebindings/{ADDONS_BINDING}",
        f"{rbac}/clusterroles/{ACCOUNT}",
    ):
        api.delete(path)
    api.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = start_server(tmp_path / "home")
    yield started
    started.stop(signal.SIGTERM)


@pytest.fixture
def binary() -> str:
    try:
        return str(find_binary(None, "/usr/local/bin:/usr/bin:/bin"))
    except ProvisioningError:
        pytest.skip(f"neither of {', '.join(NAMES)} is installed")


async def may_install(connection: Connection) -> bool:
    async with KubeClient(connection) as client:
        return await client.can_i("create", CLUSTER_ROLE_BINDING)


async def test_the_account_may_do_what_registration_asks_for_and_no_more(
    made: RunningCluster,
) -> None:
    admin = made.connection()
    found = await ensure_access(admin)
    assert found.token != admin.token
    assert (found.certificate_pem, found.token_file, found.expires_at) == (None, None, None)
    async with KubeClient(found) as client:
        assert (await look_at(client, found.server)).missing == ()
        assert not await client.can_i("delete", NODE)
        assert not await client.can_i("create", CLUSTER_ROLE_BINDING)
        assert await client.can_i("create", DEPLOYMENT)
    assert await ensure_access(admin) == found, "made once"

    assert await may_install(await ensure_access_for_addons(admin))
    assert not await may_install(await ensure_access(admin)), "and taken back"
    async with KubeClient(admin) as client:
        assert await client.find(CLUSTER_ROLE, ACCOUNT) is not None


def test_a_cluster_that_was_made_from_here_is_registered_by_an_account_of_its_own(
    made: RunningCluster, server: Server, binary: str, tmp_path: Path
) -> None:
    admin = made.connection()
    assert admin.ca_pem is not None
    outputs = {
        "server": admin.server,
        "certificate_authority_data": base64.b64encode(admin.ca_pem.encode()).decode(),
        "token": str(admin.token),
    }
    program = str(write_program(tmp_path / "standing-in", binary, outputs))
    cli = CommandLine(server.home, tmp_path)

    def ok(*words: str) -> str:
        return cli.ok(*words, env={"GPUPLANE_PROVISIONING_BINARY": program}).out

    ok("clusters", "provision", "-f", str(EXAMPLES / "eks.yaml"), "--yes")
    registered = ok("clusters", "register", "train-eu", "--provisioned")
    assert registered.splitlines()[-1] == "train-eu is available"
    kept = json.loads(ok("clusters", "credentials", "train-eu", "-o", "json"))
    assert (kept["number"], kept["context"], kept["expires_at"]) == (1, "train-eu", None)
    addons = json.loads(ok("clusters", "addons", "train-eu", "-o", "json"))["items"]
    assert {each["state"] for each in addons} == {"left_out"}

    handed_out = ok("clusters", "access", "train-eu")
    assert str(admin.token) not in handed_out
    assert read_kubeconfig(handed_out).server == admin.server

    assert "sealed anew" in ok("secrets", "rotate-keys")
    again = json.loads(ok("clusters", "credentials", "train-eu", "--provisioned", "-o", "json"))
    assert again["number"] == 2
    ok("clusters", "rm", "train-eu", "--yes")
    assert "to destroy" in ok("clusters", "deprovision", "train-eu", "--yes")


def test_credentials_that_may_not_make_the_account_are_told_to_be_too_few(
    made: RunningCluster, tmp_path: Path
) -> None:
    weak = tmp_path / "weak.kubeconfig"
    weak.write_text(write_kubeconfig(replace(made.connection(), token="nobody")))
    done = CommandLine(tmp_path, tmp_path)("clusters", "access", "--kubeconfig", str(weak))
    assert (done.code, "does not know these credentials" in done.err) == (4, True), done
    assert not done.out
