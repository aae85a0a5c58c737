"""What is taught: chapters as text, the exercises' checks, and the builder that makes notebooks of them."""
