"""Documents: what they say is run, and what is made is current."""
