"""What writes the committed files that are made from others."""
