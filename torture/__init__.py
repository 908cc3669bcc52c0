"""A bench that hurts vitling on purpose, and counts what held: `python -m torture --help`, docs/reliability.md.

It stands outside of the product: nothing in vitling knows of it.
"""
