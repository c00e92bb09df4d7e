"""What a batch of submits looks up, each thing once however many submits need it.

Lives as long as one session: what it holds is as of that session's view.
"""

from functools import cached_property

from gpuplane.core.ids import ClusterId, ProjectId, TenantId
from gpuplane.core.pricing.book import PriceBook
from gpuplane.db.sessions import ReadSession
from gpuplane.domains.billing import service as billing
from gpuplane.domains.clusters import service as clusters
from gpuplane.domains.clusters.service import Cluster
from gpuplane.domains.identity import service as identity
from gpuplane.domains.identity.service import Project
from gpuplane.domains.nodes import service as nodes
from gpuplane.domains.queues import service as queues
from gpuplane.domains.queues.service import QueueSpecs


class Lookups:
    """Clusters, projects, names and prices of one session."""

    def __init__(self, session: ReadSession) -> None:
        """Look nothing up yet."""
        self.session = session
        self.estimates: dict[object, tuple[int | None, str] | None] = {}
        """What jobs cost, by all that decides about it: jobs of a crowd are much alike."""
        self._usable: dict[TenantId, list[Cluster]] = {}
        self._projects: dict[ProjectId, Project | None] = {}
        self._tenants: dict[TenantId, str] = {}
        self._queues: dict[ClusterId, QueueSpecs] = {}
        self._largest: dict[ClusterId, tuple[int, int]] = {}

    def usable_clusters(self, tenant_id: TenantId) -> list[Cluster]:
        """Return the clusters a tenant may use."""
        if tenant_id not in self._usable:
            self._usable[tenant_id] = list(clusters.list_usable(self.session, tenant_id))
        return self._usable[tenant_id]

    def find_project(self, project_id: ProjectId) -> Project | None:
        """Return a project, or None."""
        if project_id not in self._projects:
            found = identity.projects_by_ids(self.session, {project_id})
            self._projects[project_id] = found.get(project_id)
        return self._projects[project_id]

    def tenant_name(self, tenant_id: TenantId) -> str:
        """Return the name of a tenant, empty if there is none."""
        if tenant_id not in self._tenants:
            found = identity.tenants_by_ids(self.session, {tenant_id})
            self._tenants[tenant_id] = found[tenant_id].name if tenant_id in found else ""
        return self._tenants[tenant_id]

    def queues_of(self, cluster_id: ClusterId) -> QueueSpecs:
        """Return what is declared about the queues of a cluster."""
        if cluster_id not in self._queues:
            self._queues[cluster_id] = queues.load_specs(self.session, cluster_id)
        return self._queues[cluster_id]

    def largest_node(self, cluster_id: ClusterId) -> tuple[int, int]:
        """Return the most milli-CPU and the most MiB of memory that a node of a cluster has."""
        if cluster_id not in self._largest:
            self._largest[cluster_id] = nodes.largest_node(self.session, cluster_id)
        return self._largest[cluster_id]

    @cached_property
    def clusters(self) -> list[Cluster]:
        """Return every cluster."""
        return list(clusters.list_clusters(self.session))

    @cached_property
    def prices(self) -> PriceBook:
        """Return the price book."""
        return billing.load_book(self.session)
