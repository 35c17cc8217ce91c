"""Networks: encoders, recurrent cores, actor-critic, and custom networks."""
