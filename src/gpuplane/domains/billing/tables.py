"""The price book: append-only, a price is followed by a later one and never changed."""

from sqlalchemy import CheckConstraint, Column, Index, String, Table, Uuid

from gpuplane.db.types import Base, Instant, Micro

prices = Table(
    "billing_prices",
    Base.metadata,
    Column("id", Uuid(), primary_key=True),
    # NULL: every cluster that has no price of its own.
    Column("cluster_id", Uuid()),
    Column("item", String(100), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("price_micro", Micro, nullable=False),
    Column("valid_from", Instant, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("created_by", String(200), nullable=False),
    CheckConstraint("price_micro >= 0", name="billing_price_not_negative"),
    Index("ix_billing_prices_item", "item", "cluster_id", "valid_from"),
)
