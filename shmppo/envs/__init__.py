"""Environments: making, checking, and stepping many of them."""
