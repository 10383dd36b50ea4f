"""How many tokens a verify gains, and whether that is enough."""
