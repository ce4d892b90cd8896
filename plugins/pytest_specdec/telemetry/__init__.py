"""What is read while an engine decodes: the clock, energy, power, memory."""
