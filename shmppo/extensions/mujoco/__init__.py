"""Stepping of Gymnasium's MuJoCo tasks without Gymnasium's Python code (--env-backend mujoco)."""
