"""The time that the encoders of images take."""
