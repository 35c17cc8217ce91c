"""Environments: creation, checks, wrappers, snapshots, and vector environments."""
