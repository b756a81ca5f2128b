"""Many agents against one OpenAI-compatible server, ours or a peer's. Torch-free; needs the ``bench`` extra."""
