"""Engines behind an HTTP endpoint that speaks OpenAI's protocol."""
