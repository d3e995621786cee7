"""A simulated vLLM: a scheduler without a clock, an engine that steps it in time, and its HTTP face."""
