"""From what other libraries train to a Built: one module a library, and the reading of their files.

Each importer module has add_arguments(parser) and import_model(args) -> Built, and below these pure functions from
weights and configuration to a Built. What it cannot take it refuses with ImportRefused; it never guesses.
"""
