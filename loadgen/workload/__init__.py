"""WHAT each request says, as a pure function of (seed, nonce, index): sources, lengths, texts and media, and the prompt
that a conversation makes.

Imports: profile. Begin with `sources.py`.
"""
