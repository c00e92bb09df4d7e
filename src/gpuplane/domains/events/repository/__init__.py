"""Every query on events, their stream, webhooks and deliveries."""
