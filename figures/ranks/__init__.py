"""Training with several ranks on one machine: topologies, speed-up, and preemption."""
