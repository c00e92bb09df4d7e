"""The HTTP edge: app factory, guard of every route, authentication, problem documents."""
