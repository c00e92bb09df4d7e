"""Who is there: tenants, projects, users, tokens, memberships, and clusters a project may use."""
