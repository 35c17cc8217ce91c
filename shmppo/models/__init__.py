"""Networks: observation spaces, encoders, recurrent cores, action distributions, and normalization."""
