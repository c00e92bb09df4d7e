"""Argo Workflows: workflows, templates and cron workflows."""
