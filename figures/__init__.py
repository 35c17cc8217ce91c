"""Experiments with shmppo: one package per experiment with its scripts, data, and picture. See README.md."""
