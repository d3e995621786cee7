"""A vLLM engine inside the worker: its life, its requests, and why it died. `vllm_api.py` alone imports vLLM.

Imports: measure, profile, workload. Begin with `lifecycle.py`.
"""
