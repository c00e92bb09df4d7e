"""HTTP of registration: a kubeconfig comes in, is looked at, sealed, and a run goes on with it."""

import hashlib
import json
import secrets
from functools import partial
from typing import Annotated, cast

from fastapi import APIRouter, Path, Query, Request
from pydantic import ValidationError

from gpuplane.core.ids import ClusterId
from gpuplane.db.calls import Call, CallDep
from gpuplane.domains.clusters import service
from gpuplane.domains.clusters.endpoints.looks import Look, look_by, read_connection
from gpuplane.domains.clusters.endpoints.operating import ClusterKey as ClusterName
from gpuplane.domains.clusters.endpoints.shaping import cluster_body
from gpuplane.domains.clusters.errors import AddonNotFound, ClusterExists, ClusterRefused
from gpuplane.domains.clusters.schemas import (
    AddonsIn,
    ClusterDescriptionIn,
    ClusterIn,
    ClusterOut,
    ClusterSettingsIn,
    CredentialsIn,
    CredentialsOut,
    RegistrationOut,
    RegistrationStepOut,
)
from gpuplane.domains.clusters.service import (
    ADDONS,
    CarryOver,
    Cluster,
    ClusterKey,
    ClusterState,
    Credential,
    Registration,
)
from gpuplane.domains.runs.service import Run, RunPolicy
from gpuplane.kit.access import Permission, accepts_form, rate_limited, requires
from gpuplane.kit.errors import InvalidInput
from gpuplane.kit.ids import new_id
from gpuplane.kit.problems import refused_fields
from gpuplane.kit.targets import parse_target

router = APIRouter()

REGISTRATIONS = "registrations"
DEPLOYMENTS = "deployments"
"""The limits of 5.1 of the design document: what reaches out to a cluster, what deploys there."""
KEY_BYTES = 32
DRAIN_WAIT_S = 3_600
HINT_CHARS = 11
_OF_CONFIG = {"admission", "expose", "report_image"}
"""What of a description is kept in the config that its backend reads."""
_FORM = ("cluster_create_request", "configuration")
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": ClusterIn.model_json_schema()},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": list(_FORM),
                    "properties": {
                        _FORM[0]: {
                            "type": "string",
                            "description": "JSON: the fields beside the kubeconfig.",
                        },
                        _FORM[1]: {
                            "type": "string",
                            "format": "binary",
                            "description": "The kubeconfig.",
                        },
                    },
                }
            },
        },
    }
}


@router.post("/clusters", status_code=202, openapi_extra=_BODY)
@requires(Permission.CLUSTER_MANAGE)
@rate_limited(REGISTRATIONS)
@accepts_form(*_FORM)
async def register_cluster(call: CallDep, request: Request) -> RegistrationOut:
    """Register a cluster by its kubeconfig: JSON, or a form with the file.

    It is reached, its version and our rights are checked, and nothing is stored if that fails;
    a run then reads its nodes, brings add-ons in and lets it take work.
    """
    asked = _read_body(request)
    _check_url(asked.ingress_url)
    service.require_addons(asked.addons)
    await _refuse_taken(call, asked.name)
    text = asked.kubeconfig.get_secret_value()
    connection = await read_connection(text, asked.context)
    call.is_costly = True  # from here on a cluster is reached out to
    is_worker = asked.role == "worker"  # as asked for; by itself none is told to be one
    brings_addons = asked.addons is None or len(asked.addons) > 0
    look = await look_by(
        connection, asked.admission, is_worker=is_worker, brings_addons=brings_addons
    )
    await _refuse_known(call, look)
    cluster = _new_cluster(asked, look, call.now)
    credential = await _sealed(call, cluster.id, text, look, 1)
    plain, key = new_cluster_key(call, cluster.id)
    project = call.principal
    plan = service.plan_registration(
        cluster.id,
        cluster.name,
        tenant_id=project.tenant_id,
        project_id=project.project_id,
        actor=project.name,
        addons=asked.addons,
        traceparent=call.traceparent,
    )
    registration = Registration(cluster, credential, key, plan)
    policy = call.port("run_policy", RunPolicy)
    carry_over = cast("CarryOver | None", call.ports.get("carry_over"))
    return await call.write(
        "clusters.register",
        lambda s: service.register(s, registration, policy, call.now, carry_over),
        lambda made: _registration(*made, service.REGISTER_STEPS, plain, look.warnings),
        202,
    )


@router.post("/clusters/{cluster}/registration", status_code=202)
@requires(Permission.CLUSTER_MANAGE)
@rate_limited(REGISTRATIONS)
async def register_again(
    call: CallDep, cluster: ClusterName, body: AddonsIn | None = None
) -> RegistrationOut:
    """Run the registration once more: after a failure, or to bring in add-ons."""
    named = None if body is None else body.addons
    service.require_addons(named)
    known = await call.read(lambda s: service.get_cluster(s, cluster))
    statuses = await call.read(lambda s: service.list_addons(s, known.id))
    plan = service.plan_registration(
        known.id,
        known.name,
        tenant_id=call.principal.tenant_id,
        project_id=call.principal.project_id,
        actor=call.principal.name,
        addons=service.choose_addons(known, statuses, named),
        traceparent=call.traceparent,
    )
    policy = call.port("run_policy", RunPolicy)
    return await call.write(
        "clusters.register_again",
        lambda s: service.register_again(s, known.id, plan, policy, call.now, addons=named),
        lambda made: _registration(*made, service.REGISTER_STEPS, None, ()),
        202,
    )


@router.patch("/clusters/{cluster}")
@requires(Permission.CLUSTER_MANAGE)
async def change_cluster(
    call: CallDep, cluster: ClusterName, body: ClusterSettingsIn
) -> ClusterOut:
    """Change role, admission, ingress, routes, attributes, or whether control-plane nodes count."""
    _check_url(body.ingress_url)
    known = await call.read(lambda s: service.get_cluster(s, cluster))
    wanted = body.model_dump(exclude_none=True, exclude=_OF_CONFIG)
    told = body.model_dump(exclude_none=True, include=_OF_CONFIG)
    if told:
        wanted["config"] = {**known.config, **told}
    offers = cast("service.CountOffers", call.ports["count_offers"])
    reservations = cast("service.CountReservations", call.ports["count_reservations"])
    change = partial(
        service.change,
        key=known.id,
        wanted=wanted,
        actor=call.principal.name,
        now=call.now,
        count_offers=offers,
        count_reservations=reservations,
    )
    return await call.write(
        "clusters.change",
        change,
        cluster_body,
    )


@router.put("/clusters/{cluster}/credentials")
@requires(Permission.CLUSTER_MANAGE)
@rate_limited(REGISTRATIONS)
async def replace_credentials(
    call: CallDep, cluster: ClusterName, body: CredentialsIn
) -> CredentialsOut:
    """Replace a cluster's kubeconfig; what runs goes on, the old one is used no more."""
    known = await call.read(lambda s: service.get_cluster(s, cluster))
    before = await call.read(lambda s: service.find_credential(s, known.id))
    text = body.kubeconfig.get_secret_value()
    connection = await read_connection(text, body.context)
    call.is_costly = True
    look = await look_by(connection, None)
    if look.uid and look.uid != known.config.get("uid", look.uid):
        raise ClusterRefused(
            f"These are credentials of another cluster than {known.name}.",
            code="another_cluster",
            field="kubeconfig",
            fix="Register that one under a name of its own.",
        )
    number = 1 if before is None else before.number + 1
    credential = await _sealed(call, known.id, text, look, number)
    changes = {
        "server_url": look.connection.server,
        "host": look.host,
        "kubernetes_version": look.version,
    }
    return await call.write(
        "clusters.replace_credential",
        lambda s: service.replace_credential(s, known.id, credential, changes, call.now),
        lambda _: _credentials(credential),
    )


@router.get("/clusters/{cluster}/credentials")
@requires(Permission.CLUSTER_MANAGE)
async def get_credentials(call: CallDep, cluster: ClusterName) -> CredentialsOut:
    """Say which credentials are kept of a cluster and until when they hold, and nothing of them."""
    known = await call.read(lambda s: service.get_cluster(s, cluster))
    kept = await call.read(lambda s: service.get_credential(s, known))
    return _credentials(kept)


@router.delete("/clusters/{cluster}", status_code=202)
@requires(Permission.CLUSTER_MANAGE)
async def delete_cluster(
    call: CallDep,
    cluster: ClusterName,
    *,
    force: Annotated[
        bool,
        Query(description="End its work at once; forget the cluster even if it does not answer."),
    ] = False,
    wait_s: Annotated[
        int,
        Query(ge=0, le=604_800, description="How long BATCH may go on and checkpoints may take."),
    ] = DRAIN_WAIT_S,
    keep_cordons: Annotated[
        bool, Query(description="Leave Nodes cordoned that were cordoned here.")
    ] = False,
) -> RegistrationOut:
    """Delete a cluster: its work is drained first, or ended with `force`; a run does it."""
    known = await call.read(lambda s: service.get_cluster(s, cluster))
    plan = service.plan_deletion(
        known.id,
        known.name,
        tenant_id=call.principal.tenant_id,
        project_id=call.principal.project_id,
        actor=call.principal.name,
        force=force,
        wait_s=wait_s,
        keep_cordons=keep_cordons,
    )
    policy = call.port("run_policy", RunPolicy)
    return await call.write(
        "clusters.start_deletion",
        lambda s: service.start_deletion(s, known.id, plan, policy, call.principal.name, call.now),
        lambda made: _registration(*made, service.DELETE_STEPS, None, ()),
        202,
    )


@router.post("/clusters/{cluster}/addons/{addon}/adoption", status_code=202)
@requires(Permission.CLUSTER_MANAGE)
@rate_limited(DEPLOYMENTS)
async def adopt_addon(
    call: CallDep, cluster: ClusterName, addon: Annotated[str, Path(max_length=63)]
) -> RegistrationOut:
    """Take over an add-on that somebody else installed; a run does it."""
    known = await call.read(lambda s: service.get_cluster(s, cluster))
    statuses = await call.read(lambda s: service.list_addons(s, known.id))
    if addon not in {each.name for each in statuses}:
        names = ", ".join(each.name for each in statuses) or "none; register it first"
        raise AddonNotFound(
            f"There is no add-on {addon!r}.", field="addon", fix=f"Add-ons of it: {names}."
        )
    plan = service.plan_adoption(
        known.id,
        known.name,
        addon,
        tenant_id=call.principal.tenant_id,
        project_id=call.principal.project_id,
        actor=call.principal.name,
    )
    policy = call.port("run_policy", RunPolicy)
    return await call.write(
        "clusters.start_adoption",
        lambda s: service.start_adoption(s, known.id, plan, policy, call.now),
        lambda made: _registration(*made, service.ADOPT_STEPS, None, ()),
        202,
    )


def _read_body(request: Request) -> ClusterIn:
    """Return what is asked, from JSON or from the two parts of a form."""
    state = request.scope["state"]
    try:
        if "form" not in state:
            return ClusterIn.model_validate(state.get("json", {}))
        form: dict[str, bytes] = state["form"]
        described = ClusterDescriptionIn.model_validate(_json_part(form))
        text = form.get(_FORM[1], b"").decode("utf-8-sig")
        whole = {**described.model_dump(exclude_unset=True), "kubeconfig": text}
        return ClusterIn.model_validate(whole)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise refused_fields(found, ClusterIn) from None
    except UnicodeDecodeError:
        raise InvalidInput(
            "The kubeconfig is not UTF-8.", field=_FORM[1], fix="Send it as text in UTF-8."
        ) from None


def _json_part(form: dict[str, bytes]) -> object:
    if _FORM[0] not in form:
        raise InvalidInput(
            f"The form has no part {_FORM[0]!r}.",
            field=_FORM[0],
            fix='Add it, such as -F \'cluster_create_request={"name": "east"}\'.',
        )
    try:
        return json.loads(form[_FORM[0]])
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"The part {_FORM[0]!r} is no JSON.", field=_FORM[0], fix="Check quotes and brackets."
        ) from error


def _check_url(url: str | None) -> None:
    if url and parse_target(url) is None:
        raise ClusterRefused(
            "The ingress is no http or https address.",
            field="ingress_url",
            fix="Write it like https://apps.example.org.",
        )


async def _refuse_taken(call: Call, name: str) -> None:
    """Refuse a name that is taken before the cluster is asked anything."""
    found = await call.read(lambda s: service.find_cluster(s, name))
    if found is not None:
        raise ClusterExists(
            f"There is a cluster {name!r} already ({found.state}).",
            field="name",
            fix="Choose another name, or replace the credentials of that one.",
        )


async def _refuse_known(call: Call, look: Look) -> None:
    """Refuse a cluster that is registered under another name: its GPUs would be sold twice."""
    for each in await call.read(service.list_clusters):
        if look.uid and each.config.get("uid") == look.uid:
            raise ClusterExists(
                f"It is registered already, as {each.name!r}.",
                field="kubeconfig",
                fix=f"Use {each.name}, or replace its credentials.",
            )


def _new_cluster(asked: ClusterIn, look: Look, now: int) -> Cluster:
    return Cluster(
        id=ClusterId(new_id()),
        name=asked.name,
        kind=service.KUBERNETES,
        simulated=False,
        state=ClusterState.REGISTERING,
        state_reason="",
        labels={},
        notes=(),
        config={
            **asked.model_dump(exclude_none=True, include=_OF_CONFIG),
            "admission": look.admission,
            "uid": look.uid,
            ADDONS: asked.addons,
        },
        frozen=False,
        frozen_reason="",
        preemption_policy={},
        inventory_generation=0,
        created_at=now,
        updated_at=now,
        version=1,
        platform=asked.platform or look.platform,
        role=asked.role or "worker",
        server_url=look.connection.server,
        host=look.host,
        ingress_url=asked.ingress_url or look.ingress_url,
        enable_master_node=bool(asked.enable_master_node),
        kubernetes_version=look.version,
        distribution=look.distribution,
        attributes=asked.attributes or {},
    )


async def _sealed(
    call: Call, cluster_id: ClusterId, text: str, look: Look, number: int
) -> Credential:
    """Return a kubeconfig as it is kept: bound to this cluster and this number."""
    context = service.credential_context(cluster_id, number)
    return Credential(
        cluster_id=cluster_id,
        sealed=await call.seal(text.encode(), context),
        number=number,
        context=look.connection.context,
        expires_at=look.connection.expires_at,
        stored_at=call.now,
        stored_by=call.principal.name,
    )


def new_cluster_key(call: Call, cluster_id: ClusterId) -> tuple[str, ClusterKey]:
    """Return a key for the cluster's metrics, and what is kept of it."""
    plain = "gpc_" + secrets.token_urlsafe(KEY_BYTES)
    digest = hashlib.sha256(plain.encode()).hexdigest()
    kept = ClusterKey(
        id=new_id(),
        cluster_id=cluster_id,
        key_hash=digest,
        hint=plain[:HINT_CHARS],
        issued_at=call.now,
        issued_by=call.principal.name,
    )
    return plain, kept


def _registration(
    cluster: Cluster,
    run: Run,
    steps: tuple[tuple[str, str, object, int], ...],
    plain: str | None,
    warnings: tuple[str, ...],
) -> RegistrationOut:
    return RegistrationOut(
        success=True,
        workflow_id=run.id,
        cluster=cluster_body(cluster),
        steps=[
            RegistrationStepOut(name=key, status="pending", title=title)
            for key, title, _, _ in steps
        ],
        metrics_key=plain,
        warnings=list(warnings),
    )


def _credentials(kept: Credential) -> CredentialsOut:
    return CredentialsOut(
        number=kept.number,
        context=kept.context,
        expires_at=kept.expires_at,
        stored_at=kept.stored_at,
        stored_by=kept.stored_by,
    )
