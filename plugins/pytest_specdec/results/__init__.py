"""Results: what is recorded, and how it is shown."""
