"""Time that action recording, hashing, and checkpoints add to an iteration."""
