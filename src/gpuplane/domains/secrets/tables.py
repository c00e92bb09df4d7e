"""The table of sealed secrets."""

from uuid import UUID

from sqlalchemy import LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gpuplane.db.types import Base


class SecretRow(Base):
    """One secret of a project: the newest value alone, sealed."""

    __tablename__ = "secrets_secrets"
    __table_args__ = (UniqueConstraint("project_id", "name"),)

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID]
    project_id: Mapped[UUID]
    name: Mapped[str] = mapped_column(String(63))
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    value_version: Mapped[int]
    """Counts rotations; part of what the value is sealed for."""
    created_by: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[int]
    rotated_at: Mapped[int]
    version: Mapped[int] = mapped_column(default=1)
