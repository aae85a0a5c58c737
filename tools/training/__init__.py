"""Train the small models that come with the package and the course, and crop the photos."""
