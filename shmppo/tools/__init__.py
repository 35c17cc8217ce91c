"""Implementations of the commands export, check-env, and verify, and runs in processes of their own."""
