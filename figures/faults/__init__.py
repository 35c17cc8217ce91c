"""Training runs with random worker failures and stops end with the weights of undisturbed runs."""
