"""Models from transformers (safetensors and GGUF), their tokenizers and chat templates. Imports torch."""

from __future__ import annotations

from .chat import Message, continue_chat, encode_chat
from .load import LoadedModel, load_model

__all__ = ["LoadedModel", "Message", "continue_chat", "encode_chat", "load_model"]
