"""What nobody thought of: made by machines, bounded in time."""
