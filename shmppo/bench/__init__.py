"""Benchmarks of training speed: `python -m shmppo.bench COMMAND`."""
