"""Networks: observations, encoders, recurrent cores, action distributions."""
