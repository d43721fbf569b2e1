"""`hexsage serve --workers N` as processes: deaths, signals, reloads, TLS."""
