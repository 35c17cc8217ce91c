"""Time of the recurrent cores and of the encoders of images."""
