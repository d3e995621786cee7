"""The endpoints of a server by kind of workload: what is sent there, and how a whole answer is read.

Imports: measure, profile, workload. Begin with `table.py`.
"""
