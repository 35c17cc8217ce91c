"""Optional features. Each is a package here, and nothing outside of it names it (see `shmppo.config.extensions`)."""
