"""All experiments of returns, one after the other."""
