"""loadgen: an async, actor-based load generator for vLLM deployments."""
