"""Throughput of four ranks, one of them slow, with and without preemption."""
