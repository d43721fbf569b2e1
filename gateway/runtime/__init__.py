"""The scheduler against reality: the driver, its clock, and what runs beside it."""
