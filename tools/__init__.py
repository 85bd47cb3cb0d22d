"""What makes parts of the package, and is not shipped with it."""
