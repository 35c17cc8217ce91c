"""Share of an iteration that two ranks spend on communication."""
