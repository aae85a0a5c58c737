"""Choose a document and a release of torch, and see what its author would have seen."""
