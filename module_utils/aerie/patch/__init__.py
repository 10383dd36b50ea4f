"""Source patches: pristine plus patches, all files or none."""
