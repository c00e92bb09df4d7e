"""The kinds of manifests: what each means, and how it is made so; one file a kind."""
