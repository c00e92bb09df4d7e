"""Makes clusters on clouds by the OpenTofu or Terraform binary, and keeps their state sealed."""
