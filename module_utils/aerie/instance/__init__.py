"""One instance's life: what is asked, what is there, what has to be done, and doing it."""
