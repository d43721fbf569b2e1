"""Settings: where they come from, and every mistake named with its place."""
