"""Jobs, the store of their runs, and the workers that run them."""
