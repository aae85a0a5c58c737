"""What you sent, and what a layer received, side by side."""
