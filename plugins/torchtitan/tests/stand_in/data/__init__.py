"""A stand-in of `torchtitan.components.data` of the main branch; put on that package's path."""
