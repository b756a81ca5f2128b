"""Where ``kvtrace top`` gets what it shows from: a server, span files, a recording, or a simulated engine."""
