"""The web API that vLLM has: a file for each family of routes, and the server that they stand in.

Imports: nothing. Begin with `app.py`.
"""
