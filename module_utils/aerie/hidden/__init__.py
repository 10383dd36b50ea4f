"""Whether the draft gets the states that it was trained on."""
