"""Recurrent networks that did not become built-in cores, as custom networks."""
