"""The nouns of the product, one package each; every package has the same seven files."""
