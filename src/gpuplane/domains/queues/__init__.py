"""Queues: cluster queues, cohorts, local queues and flavors, in Kueue's words."""
