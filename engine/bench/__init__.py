"""What ``kvtrace bench`` measures: the link, the swap tier, the model's steps, and agents against a running server."""
