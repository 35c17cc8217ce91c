"""Vector environments of the user (--env-backend vector)."""
