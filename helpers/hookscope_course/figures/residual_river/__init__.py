"""The residual river: what each part of a language model adds to a token's stream, and the word at each depth."""
