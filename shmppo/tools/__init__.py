"""Implementations of the commands export, replay, check-env, and verify, and runs in processes of their own."""
