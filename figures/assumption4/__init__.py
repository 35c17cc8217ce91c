"""KL divergence between updates on a subset of the environments and the update on all of them."""
