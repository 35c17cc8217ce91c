"""Throughput of central, sharded, and decentralized learning on one machine."""
