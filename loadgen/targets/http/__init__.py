"""A server over HTTP: bodies and headers out, bytes in, events and instants out of them, and the check before the load.

Imports: measure, profile, workload. Begin with `session.py`.
"""
