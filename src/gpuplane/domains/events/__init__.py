"""What happened: the outbox, the audit trail, the stream, and webhooks that carry it outside."""
