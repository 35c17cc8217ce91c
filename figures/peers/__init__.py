"""Throughput of shmppo and of other PPO implementations."""
