"""The engine: continuous batching as a state machine without a clock, stepped in time; several behind a router.

Imports: nothing. Begin with `scheduler.py`.
"""
