"""Trained policies: load, act, evaluate, film."""
