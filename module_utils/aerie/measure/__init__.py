"""How fast a server is under load, and where its time goes."""
