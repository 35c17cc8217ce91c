"""Third-party suites of environments: installation, needed wrappers, and whether training is reproducible."""
