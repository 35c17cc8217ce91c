"""The files of self-play."""

from __future__ import annotations

DIRECTORY = "opponents"
"""Directory with earlier weights, against which the policy plays."""
DIRECTORIES, TABLES = (DIRECTORY,), ()
