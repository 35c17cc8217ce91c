"""Returns on the memory tasks of POPGym."""
