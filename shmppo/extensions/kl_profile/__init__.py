"""KL profiles (--kl-profile-every): how far each optimizer step of an update moves the policy."""
