"""The files of KL profiles."""

from __future__ import annotations

DIRECTORY, TABLE = "kl", "kl.csv"
DIRECTORIES, TABLES = (DIRECTORY,), (TABLE,)
GLOSSARY: dict[str, str] = {
    "iteration": "iteration of the update",
    "optimizer_steps": "optimizer steps of the update",
    "probe_steps": "environment steps on which the KL is computed",
    "sequential_mean": "mean sequential KL over the recorded policies, in nats",
    "reference_start": "reference KL of the policy before the first step, in nats",
    "gamma": "fitted factor of the reference KL per optimizer step",
    "slope": "fitted slope of log₁₀ of the reference KL against the share of data",
    "monotonic_share": "how often the KL to the final policy falls from one recorded policy to the next, as a share",
    "seconds": "seconds spent on recording",
}
"""Every column of kl.csv."""
