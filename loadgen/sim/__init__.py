"""The simulated vLLM: `engine/` batches and takes time, `model/` says something, `api/` serves both over HTTP, and
`config.py` holds its settings.

Imports: nothing. Begin with `config.py`.
"""
