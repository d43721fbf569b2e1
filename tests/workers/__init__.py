"""Several processes: the pieces in one loop, then whole process trees."""
