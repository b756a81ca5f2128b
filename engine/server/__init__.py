"""``kvtrace serve``: an OpenAI-compatible server over one engine. Needs ``kvtrace[engine]``; see docs/serve.md."""
