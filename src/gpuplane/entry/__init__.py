"""The composition root: settings in, everything built here, the only place that names backends."""
