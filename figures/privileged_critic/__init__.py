"""Three seeds of HalfCheetah with positions for the actor, and a critic with and without velocities."""
