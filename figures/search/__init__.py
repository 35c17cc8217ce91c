"""A search on the default job, and how fast its best configuration learns."""
