"""The dashboard: what is served, and what a browser makes of it."""
