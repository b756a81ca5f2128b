"""What ``kvtrace top`` shows, as plain data: no terminal, no clock, no network."""
