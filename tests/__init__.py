"""The tests; they run the notebooks as well."""
