"""What calling a module does, in the lines of torch's own source that matter."""
