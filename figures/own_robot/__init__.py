"""An arm with hidden velocities and unknown dynamics: memory, no memory, and a policy that sees everything."""
