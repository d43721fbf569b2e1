"""The dashboard: one page and what it is made of. It shows what /admin tells, and needs its key."""
