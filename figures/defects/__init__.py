"""Tests of defects that an older commit had."""
