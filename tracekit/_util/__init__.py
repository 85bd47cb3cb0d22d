"""What every room uses and nobody outside imports: options, files, markup, progress, processes."""
