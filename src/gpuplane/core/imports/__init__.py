"""Turns documents of other systems into pipelines: from parsed YAML to a document and a table.

`importing.import_documents` is the one way in. Reading YAML text is the business of
`kit/yaml_texts.py`, checking the pipeline that of the domain.
"""
