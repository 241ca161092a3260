"""Trains Dinghy's reference models and writes bundles.

A bundle is the folder that the `dinghy` server loads: see proto/bundle.proto and model/export/README.md.
"""
