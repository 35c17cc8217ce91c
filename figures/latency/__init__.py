"""Efficiency of lock-step sampling when environment steps sleep instead of computing."""
