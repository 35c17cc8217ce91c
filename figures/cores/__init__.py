"""Candidates for new recurrent cores, as custom networks."""
