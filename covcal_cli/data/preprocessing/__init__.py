"""What is done to an image before a classifier is fed."""
