"""Learning from a teacher (--teacher) and from demonstrations (--demonstrations)."""
