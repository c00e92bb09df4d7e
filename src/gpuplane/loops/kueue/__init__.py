"""Follows the Kueue of clusters that admit by themselves: queues, workloads, holds, tenants."""
