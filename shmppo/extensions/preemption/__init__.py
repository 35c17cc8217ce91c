"""Preemption of stragglers (--preempt-fraction): when enough have finished a rollout, the others end theirs early."""
