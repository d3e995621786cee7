"""Settings that all tests share."""

from hypothesis import settings

# Machines are shared and noisy: a property is judged by its truth, not by the milliseconds of one example.
settings.register_profile("loadgen", deadline=None)
settings.load_profile("loadgen")
