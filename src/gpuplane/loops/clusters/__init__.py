"""Clusters outside: the steps of their registration and deletion, their add-ons, their health."""
