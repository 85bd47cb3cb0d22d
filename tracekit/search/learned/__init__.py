"""Searches that learn a soft mask by gradient descent."""
